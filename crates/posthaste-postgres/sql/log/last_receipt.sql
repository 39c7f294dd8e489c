-- The cursor: the last receipt of a sink's lane, with what is needed to see whether the database is
-- still the one it was written in.
select r.n, r.position, r.snapshot::text, r.target::text, r.late_position,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint as xmax_now,
       coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0) as last_value,
       pg_snapshot_xmax(r.snapshot)::text::bigint as xmax_then
  from posthaste.receipts r
 where r.sink = $1 and r.lane = $2
 order by r.n desc limit 1
