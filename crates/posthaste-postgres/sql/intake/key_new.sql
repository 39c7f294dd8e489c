-- A key id is random: the same one twice is a mistake, and is told.
insert into posthaste.gateway_keys (id, tenant, hash, topics, note, created_at, expires_at, revoked_at)
values ($1, $2, $3, $4, $5, clock_timestamp(), to_timestamp($6::float8 / 1e6), to_timestamp($7::float8 / 1e6))
on conflict do nothing
returning true
