-- Revoked twice: the first time counts.
update posthaste.gateway_keys set revoked_at = coalesce(revoked_at, clock_timestamp()) where id = $1
returning tenant
