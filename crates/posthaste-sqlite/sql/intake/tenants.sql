select tenant, rate_per_s, burst, paused, note, changed_at from posthaste_gateway_tenants order by tenant
