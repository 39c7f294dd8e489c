-- Bookkeeping of a turn, in the transaction that holds the ring's lock and has called setval. opened_xid
-- is this transaction's id: whoever settles a row of the new segment gets a later one.
with away as (
  update posthaste.segments set closed_at = clock_timestamp() where segment = $1
), here as (
  update posthaste.segments
     set turn = $3, opened_at = clock_timestamp(), opened_xid = pg_current_xact_id(), closed_at = null,
         seal_xid = null, closing = false, audit_note = null
   where segment = $2
)
update posthaste.ring set turn = $3
