select tenant, rate_per_s, burst, paused, note, (extract(epoch from changed_at) * 1000000)::bigint as changed_at
  from posthaste.gateway_tenants order by tenant
