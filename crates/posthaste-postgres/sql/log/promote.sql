-- The first holding event of each key comes due, unless a dead letter before it holds the key. Runs
-- after all changes of the settlement, in the same transaction; a lane has one settler at a time.
-- One step into an index for each key, whatever waits besides: with a million events aside, a join that
-- the planner may turn round walks through all of them. Hence the fence around the first step, and a
-- condition on due_at that no index can serve.
with first as materialized (
  select f.seq, k.key
    from unnest($2::text[]) as k (key)
   cross join lateral (select h.seq from posthaste.deferred h
                        where h.sink = $1 and h.key = k.key and h.holds
                        order by h.seq limit 1) f
)
update posthaste.deferred d
   set due_at = clock_timestamp()
  from first
 where d.sink = $1 and d.seq = first.seq and not isfinite(d.due_at)
   and not exists (select from posthaste.dead_letters l
                    where l.sink = $1 and l.key = first.key and l.holds_key and l.seq < d.seq)
