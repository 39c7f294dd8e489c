-- The lane of a sink that a slot belongs to, with its cursor and what it reads.
select l.lane,
       (select position from posthaste_receipts r where r.sink = l.sink and r.lane = l.lane order by n desc limit 1),
       l.retired_at is not null, l.filter, l.filter_before, l.filter_until
  from posthaste_lanes l
 where l.sink = ?1 and ?2 between l.slot_from and l.slot_to
