-- The number up to which every sink has handled everything: the lowest cursor. Null where there is no cursor at all.
select min((select position from posthaste_receipts r where r.sink = l.sink and r.lane = l.lane order by n desc limit 1))
  from posthaste_lanes l
 where l.retired_at is null or l.retired_at > ?1
