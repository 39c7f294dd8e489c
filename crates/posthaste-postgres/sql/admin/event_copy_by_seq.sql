-- The same by its number: a step into an index for each sink.
select c.seq, c.slot, c.id, c.topic, c.key, c.headers, c.content_type, octet_length(c.payload)::bigint as payload_bytes,
       c.payload, c.deliver_at, c.appended_at, null::text as xid
  from (select distinct sink from posthaste.lanes) s
 cross join lateral (
   select seq, slot, id, topic, key, headers, content_type, payload, deliver_at, appended_at
     from posthaste.dead_letters l where l.sink = s.sink and l.seq = $1
   union all
   select seq, slot, id, topic, key, headers, content_type, payload, deliver_at, appended_at
     from posthaste.deferred d where d.sink = s.sink and d.seq = $1) c
 limit 1
