-- Lanes of a sink whose filter changes get a higher epoch and its receipt: whoever owned them settles nothing any more,
-- as after a take-over (take.sql). In a statement of its own, before the number is read up to which the former filter
-- counts: no cursor is past that number.
with changed as (
  update posthaste.lanes set epoch = epoch + 1 where sink = $1 and filter <> $2 returning sink, lane, epoch
), gone as (
  delete from posthaste.lease_tokens t using changed c where t.sink = c.sink and t.lane = c.lane
)
insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot, target, late_position)
select r.sink, r.lane, r.n + 1, c.epoch, 'takeover', $3, r.position, r.snapshot, r.target, r.late_position
  from changed c
 cross join lateral (select * from posthaste.receipts r where r.sink = c.sink and r.lane = c.lane
                      order by r.n desc limit 1) r
