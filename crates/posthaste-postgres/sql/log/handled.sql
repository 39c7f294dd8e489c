-- Whether every cursor is past a sealed segment: past its last row by number, and with a snapshot whose
-- xmin is past its seal, so that no row of it can be late any more. A sink that left the configuration
-- counts for another day: a wrong deployment must not cost its backlog.
select not exists (
  select from posthaste.lanes l
    join lateral (select position, snapshot, target from posthaste.receipts r
                   where r.sink = l.sink and r.lane = l.lane order by n desc limit 1) r on true
   where (l.retired_at is null or l.retired_at > clock_timestamp() - interval '24 hours')
     and (r.target is not null or r.position < $2 or pg_snapshot_xmin(r.snapshot) <= (
            select seal_xid from posthaste.segments where segment = $1)))
