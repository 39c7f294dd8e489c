-- Events of these keys that are not the first any more wait: an event that was replayed went before them,
-- or they went behind one. Under lock_keys.sql, so no settlement changes a key meanwhile.
update posthaste.deferred d
   set due_at = 'infinity'
  from (select distinct k.sink, k.key from unnest($1::text[], $2::text[]) as k (sink, key)) k
 where d.sink = k.sink and d.key = k.key and d.holds and d.due_at < 'infinity'
   and (exists (select from posthaste.deferred e
                 where e.sink = d.sink and e.key = d.key and e.holds and e.seq < d.seq)
     or exists (select from posthaste.dead_letters l
                 where l.sink = d.sink and l.key = d.key and l.holds_key and l.seq < d.seq))
