-- Events delivered in the last minute, by sink: from each lane's last receipt backwards, as long as they are
-- younger than that. An idle lane costs one lookup, a busy one as many as it wrote in a minute (it
-- coalesces them to some 50 a second), whatever the history holds. The lateral limit forces the walk
-- along the primary key. Receipts of an older relay do not say how many of their events were delivered.
with recursive walk as (
  select r.sink, r.lane, r.n, r.counts, r.delivered, 1 as steps
    from posthaste.lanes l
   cross join lateral (select r.sink, r.lane, r.n, r.counts, r.delivered, r.settled_at from posthaste.receipts r
                        where r.sink = l.sink and r.lane = l.lane order by r.n desc limit 1) r
   where l.retired_at is null and r.settled_at > statement_timestamp() - interval '60 seconds'
  union all
  select r.sink, r.lane, r.n, r.counts, r.delivered, w.steps + 1
    from walk w
   cross join lateral (select r.sink, r.lane, r.n, r.counts, r.delivered, r.settled_at from posthaste.receipts r
                        where r.sink = w.sink and r.lane = w.lane and r.n < w.n order by r.n desc limit 1) r
   where w.steps < 6000 and r.settled_at > statement_timestamp() - interval '60 seconds'
)
select w.sink, sum(coalesce(w.delivered, (select sum(c.count) from unnest(w.counts) as c (count)), 0))::bigint as delivered
  from walk w
 group by w.sink
