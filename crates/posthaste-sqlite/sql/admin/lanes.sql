-- Each lane of a sink in use, or (with ?1) of a retired one, with its cursor.
select l.sink, l.lane, l.slot_from, l.slot_to, l.filter, l.filter_before, l.filter_until, l.epoch, l.unclean, l.owner,
       l.heart, l.expires_at, r.position, r.settled_at
  from posthaste_lanes l
  left join posthaste_receipts r on r.sink = l.sink and r.lane = l.lane
   and r.n = (select max(n) from posthaste_receipts m where m.sink = l.sink and m.lane = l.lane)
 where (l.retired_at is not null) = ?1
 order by l.sink, l.lane
