-- What does not fit together: numbers above the sequence, xids that this server has not given out. A row
-- that a statement can see has an xid below its snapshot's xmax, so one above came from another server
-- (or from this one before it went back). `known`: the highest number that anything here speaks of.
select coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0) as last_value,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint as xmax,
       greatest((select coalesce(max(seq), 0) from posthaste.outbox),
                (select coalesce(max(greatest(mark, position)), 0) from posthaste.receipts),
                (select coalesce(max(seq), 0) from posthaste.deferred),
                (select coalesce(max(seq), 0) from posthaste.dead_letters)) as known,
       (select count(*) from posthaste.outbox
         where xid::text::bigint >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint) as foreign_rows,
       (select count(*) from posthaste.receipts where xid >= pg_snapshot_xmax(pg_current_snapshot()))
       + (select count(*) from posthaste.segments
           where greatest(opened_xid, seal_xid) >= pg_snapshot_xmax(pg_current_snapshot())) as foreign_notes,
       has_table_privilege('posthaste.outbox', 'update') as may_update,
       has_sequence_privilege('posthaste.outbox_seq', 'update') as may_set
