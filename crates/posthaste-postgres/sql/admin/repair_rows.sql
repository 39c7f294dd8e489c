-- Nobody updates the log; a repair is the one exception. Rows with an xid that this server has not given
-- out yet are invisible in every snapshot of here, would count as late for ever, and be sent again once
-- xids catch up. They get the first xid there is: visible in every snapshot. Every cursor is re-based in
-- the same transaction, so that none mistakes them for handled.
update posthaste.outbox set xid = '3'::xid8
 where xid::text::bigint >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
