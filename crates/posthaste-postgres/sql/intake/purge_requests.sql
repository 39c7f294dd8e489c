-- A bounded number of the oldest requests. SKIP LOCKED: gateways that purge at once share the work instead of waiting for
-- each other, so they cannot deadlock (F79). A request that comes with such a key meanwhile waits for this to commit, and
-- is a new one then.
with old as (
  select tenant, topic, key from posthaste.gateway_requests
   where at < clock_timestamp() - make_interval(secs => $1)
   order by at
   limit $2
   for update skip locked
)
delete from posthaste.gateway_requests g using old
 where g.tenant = old.tenant and g.topic = old.topic and g.key = old.key
returning true
