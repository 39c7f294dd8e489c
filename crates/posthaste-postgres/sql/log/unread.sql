-- Events behind the furthest cursor of all sinks that read by routes, up to a bound. Asked before cursors are born, under the
-- ring's lock; only a warning hangs on it, so whatever commits meanwhile does not matter.
select count(*) from (
  select from posthaste.outbox o
   where o.seq > (select coalesce(max(position), 0) from (
           select min(r.position) as position from posthaste.lanes l
             join lateral (select position from posthaste.receipts r
                            where r.sink = l.sink and r.lane = l.lane order by r.n desc limit 1) r on true
            where l.sink <> $1 group by l.sink) as sinks)
   limit $2) as unread
