-- Rows whose xid this server has not given out. The BRIN index leaves out every range without one.
select count(*) from posthaste.outbox
 where xid::text::bigint >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
