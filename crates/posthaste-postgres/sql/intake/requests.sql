-- What is remembered of these keys, after a commit whose answer was lost: the group's own ids, or those of a request that
-- came before it.
select r.n as request, g.request_hash, g.ids
  from unnest($1::int[], $2::text[], $3::text[], $4::text[]) as r (n, tenant, topic, key)
  join posthaste.gateway_requests g on g.tenant = r.tenant and g.topic = r.topic and g.key = r.key
