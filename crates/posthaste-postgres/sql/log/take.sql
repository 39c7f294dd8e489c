-- Takes a lane over, under the row lock of take_lock.sql. The receipt n + 1 with the new epoch is the
-- fence: a former owner that is still settling n + 1 violates the primary key, or we do and try again.
-- The mark is the number read before this transaction had an xid.
with taken as (
  update posthaste.lanes
     set owner = $3, heart = $4, epoch = $5, expires_at = clock_timestamp() + make_interval(secs => $6),
         unclean = $7, unclean_position = $8, in_hand = null, suspect = $9, suspect_deaths = $10
   where sink = $1 and lane = $2
), token as (
  insert into posthaste.lease_tokens (sink, lane, epoch) values ($1, $2, $5)
      on conflict (sink, lane) do update set epoch = excluded.epoch
)
insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot, target, late_position)
select r.sink, r.lane, r.n + 1, $5, 'takeover', $11, r.position, r.snapshot, r.target, r.late_position
  from posthaste.receipts r
 where r.sink = $1 and r.lane = $2 and r.n = $12
returning xid::text
