insert into posthaste_gateway_tenants (tenant, rate_per_s, burst, note, changed_at) values (?1, ?2, ?3, ?4, ?5)
on conflict do nothing
