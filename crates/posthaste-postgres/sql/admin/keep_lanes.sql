-- Lanes that live on get their new slots and lose their owners; the others go. Whatever else is known of a
-- sink stays in its rows.
with gone as (
  delete from posthaste.lanes where lane >= $1
), tokens as (
  delete from posthaste.lease_tokens
)
update posthaste.lanes
   set slot_from = 1024 * lane / $1, slot_to = 1024 * (lane + 1) / $1 - 1, filter_n = 0, epoch = $2,
       owner = null, heart = null, expires_at = null
 where lane < $1
