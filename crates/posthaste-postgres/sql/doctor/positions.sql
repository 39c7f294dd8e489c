-- Numbers and xids that do not fit this server: see repair_look.sql. Only what an index answers at once.
select coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0) as last_value,
       (select coalesce(max(seq), 0) from posthaste.outbox) as last_row,
       (select coalesce(max(r.position), 0) from posthaste.lanes l
         cross join lateral (select position from posthaste.receipts r where r.sink = l.sink and r.lane = l.lane
                              order by n desc limit 1) r) as position,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint as xmax,
       (select coalesce(max(pg_snapshot_xmax(r.snapshot)::text::bigint), 0) from posthaste.lanes l
         cross join lateral (select snapshot from posthaste.receipts r where r.sink = l.sink and r.lane = l.lane
                              order by n desc limit 1) r) as snapshot_xmax,
       (select xid::text::bigint from posthaste.receipts order by xid desc limit 1) as receipt_xid
