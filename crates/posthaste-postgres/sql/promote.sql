-- The first holding event of each key comes due, unless a dead letter before it holds the key. Runs
-- after all changes of the settlement, in the same transaction; a lane has one settler at a time.
update posthaste.deferred d
   set due_at = clock_timestamp()
  from (select distinct on (h.key) h.seq, h.key
          from unnest($2::text[]) as k (key)
          join posthaste.deferred h on h.sink = $1 and h.key = k.key and h.holds
         order by h.key, h.seq) first
 where d.sink = $1 and d.seq = first.seq and d.due_at = 'infinity'
   and not exists (select from posthaste.dead_letters l
                    where l.sink = $1 and l.key = first.key and l.holds_key and l.seq < d.seq)
