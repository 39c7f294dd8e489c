-- Every lane with its cursor, under lock_cursors.sql.
select l.sink, l.lane, l.slot_from, l.slot_to, l.filter, l.epoch, l.retired_at::text as retired_at,
       r.position, r.snapshot::text as snapshot
  from posthaste.lanes l
  left join lateral (select position, snapshot from posthaste.receipts r
                      where r.sink = l.sink and r.lane = l.lane order by n desc limit 1) r on true
 order by l.sink, l.lane
