-- Every lane with the position of its cursor.
select l.sink, l.lane, l.slot_from, l.slot_to, l.epoch,
       (select position from posthaste_receipts r where r.sink = l.sink and r.lane = l.lane order by n desc limit 1)
  from posthaste_lanes l
 order by l.sink, l.lane
