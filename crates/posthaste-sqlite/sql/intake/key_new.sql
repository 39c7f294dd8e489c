-- A key id is random: the same one twice is a mistake, and is told.
insert into posthaste_gateway_keys (id, tenant, hash, topics, note, created_at, expires_at, revoked_at)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
on conflict do nothing
