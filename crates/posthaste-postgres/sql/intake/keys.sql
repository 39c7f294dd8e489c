-- Expired and revoked ones too: people ask for them, and the gateway tells them apart by its own look at the time.
select id, tenant, hash, topics, note, (extract(epoch from created_at) * 1000000)::bigint as created_at,
       (extract(epoch from expires_at) * 1000000)::bigint as expires_at,
       (extract(epoch from revoked_at) * 1000000)::bigint as revoked_at
  from posthaste.gateway_keys order by id
