-- Every lane with its cursor, under lock_cursors.sql.
-- worked_off: everything that the lane's former routes took is handled. The position is past the number
-- where they changed, and no transaction is left that could still bring a row below it: a mark at or above
-- that number is older than everything the cursor's snapshot waits for (whoever has an xid above a mark's
-- has drawn no number up to it).
select l.sink, l.lane, l.slot_from, l.slot_to, l.filter, l.filter_before, l.filter_until, l.epoch,
       r.position, r.snapshot::text as snapshot,
       l.filter_before is not null and r.position >= l.filter_until
         and exists (select from posthaste.receipts m
                      where m.sink = l.sink and m.lane = l.lane and m.mark >= l.filter_until
                        and m.xid < pg_snapshot_xmin(r.snapshot)) as worked_off
  from posthaste.lanes l
  left join lateral (select position, snapshot from posthaste.receipts r
                      where r.sink = l.sink and r.lane = l.lane order by n desc limit 1) r on true
 order by l.sink, l.lane
