-- Bookkeeping of a turn, in the transaction that holds the ring's lock and has called setval. The new
-- segment's opened_xid stays what it was set to when it was emptied: a turn that was torn by a crash is
-- completed late, and rows settled in between must count.
with away as (
  update posthaste.segments set closed_at = clock_timestamp() where segment = $1
), here as (
  update posthaste.segments
     set turn = $3, opened_at = clock_timestamp(), closed_at = null, seal_xid = null, closing = false,
         audit_note = null
   where segment = $2
)
update posthaste.ring set turn = $3
