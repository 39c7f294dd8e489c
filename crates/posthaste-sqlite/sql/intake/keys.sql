-- Expired and revoked ones too: people ask for them, and the gateway tells them apart by its own look at the time.
select id, tenant, hash, topics, note, created_at, expires_at, revoked_at from posthaste_gateway_keys order by id
