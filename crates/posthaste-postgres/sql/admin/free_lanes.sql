-- Lanes of these sinks have no owner any more, under a new epoch.
with gone as (
  delete from posthaste.lease_tokens where sink = any ($1)
)
update posthaste.lanes
   set epoch = $2, owner = null, heart = null, expires_at = null, unclean = 0, unclean_position = null,
       in_hand = null, in_hand_deaths = 0
 where sink = any ($1)
