-- The same by its number: a step into an index for each sink.
select /*c.event*/, octet_length(c.payload)::bigint as payload_bytes, null::text as xid
  from (select distinct sink from posthaste.lanes) s
 cross join lateral (
   select /*event*/ from posthaste.dead_letters l where l.sink = s.sink and l.seq = $1
   union all
   select /*event*/ from posthaste.deferred d where d.sink = s.sink and d.seq = $1) c
 limit 1
