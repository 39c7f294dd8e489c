-- The usual read: the snapshot and the sequence's value, then late rows, then the tail.
--
-- One statement, so one snapshot for all three parts: what the first line shows is what the rows were
-- chosen by. A row that commits after it is found by the next read, late if its number is below $2.
-- Takes no locks beyond those of any SELECT and no xid.
--
-- $1 late rows lie above this number   $2 the cursor's number   $3 the cursor's snapshot
-- $4 most rows of either part          $5 the highest number looked at
select coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0), null::smallint, null::uuid,
       pg_current_snapshot()::text/*nulls*/
union all
(select /*columns*/ from posthaste.outbox
  where seq > $1 and seq <= $2 and not pg_visible_in_snapshot(xid, $3::text::pg_snapshot)/*condition*/
  order by seq limit $4)
union all
(select /*columns*/ from posthaste.outbox
  where seq > $2 and seq <= $5/*condition*/ order by seq limit $4)
