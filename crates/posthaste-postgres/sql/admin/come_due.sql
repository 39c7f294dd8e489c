-- The first holding event of each of these keys comes due, unless a dead letter before it holds the key.
update posthaste.deferred d
   set due_at = clock_timestamp()
  from (select distinct k.sink, k.key from unnest($1::text[], $2::text[]) as k (sink, key)) k
 cross join lateral (select f.seq from posthaste.deferred f
                      where f.sink = k.sink and f.key = k.key and f.holds order by f.seq limit 1) first
 where d.sink = k.sink and d.seq = first.seq and d.due_at = 'infinity'
   and not exists (select from posthaste.dead_letters l
                    where l.sink = d.sink and l.key = d.key and l.holds_key and l.seq < d.seq)
