-- Events behind the furthest cursor of all sinks that read by routes, up to a bound. Asked before cursors are born, in the
-- transaction that makes them.
select count(*) from (
  select 1 from posthaste_outbox
   where seq > (select coalesce(max(position), 0) from (
           select min((select r.position from posthaste_receipts r where r.sink = l.sink and r.lane = l.lane
                        order by r.n desc limit 1)) as position
             from posthaste_lanes l where l.sink <> ?1 group by l.sink))
   limit ?2)
