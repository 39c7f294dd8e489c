-- Gives a lane back: no owner, no lease, no unclean count. Only the present epoch may.
with gone as (
  delete from posthaste.lease_tokens where sink = $1 and lane = $2 and epoch = $3
)
update posthaste.lanes
   set owner = null, heart = null, expires_at = null, unclean = 0, unclean_position = null,
       in_hand = null, suspect = null, suspect_deaths = 0
 where sink = $1 and lane = $2 and epoch = $3
returning pg_notify($4, 'lanes')
