-- Two who add the same tenant at once: the second waits for the first, and is told that it is there.
insert into posthaste.gateway_tenants (tenant, rate_per_s, burst, note) values ($1, $2, $3, $4)
on conflict do nothing
returning true
