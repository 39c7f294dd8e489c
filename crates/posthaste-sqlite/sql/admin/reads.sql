-- What a sink reads now, and how far every lane of it has come.
select max(l.filter),
       min((select position from posthaste_receipts r where r.sink = l.sink and r.lane = l.lane order by n desc limit 1))
  from posthaste_lanes l where l.sink = ?1
