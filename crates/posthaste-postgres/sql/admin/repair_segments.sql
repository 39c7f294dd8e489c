-- A seal may always be a later xid than it was; the beginning of a segment an earlier one. Audits start
-- anew from the bases that this transaction writes.
update posthaste.segments
   set opened_xid = case when opened_xid >= pg_snapshot_xmax(pg_current_snapshot()) then '3'::xid8 else opened_xid end,
       seal_xid = case when seal_xid >= pg_snapshot_xmax(pg_current_snapshot()) then pg_current_xact_id() else seal_xid end,
       closing = false, audit_note = null
