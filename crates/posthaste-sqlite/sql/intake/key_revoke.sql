-- Revoked twice: the first time counts.
update posthaste_gateway_keys set revoked_at = coalesce(revoked_at, ?2) where id = ?1
