-- Every lane with its cursor, under lock_cursors.sql.
select l.sink, l.lane, l.slot_from, l.slot_to, l.filter, l.filter_before, l.filter_until, l.epoch,
       r.position, r.snapshot::text as snapshot
  from posthaste.lanes l
  left join lateral (select position, snapshot from posthaste.receipts r
                      where r.sink = l.sink and r.lane = l.lane order by n desc limit 1) r on true
 order by l.sink, l.lane
