-- Gives a lane back: no owner, no lease, no unclean count. Whoever calls it has checked that the lane is its own.
update posthaste_lanes
   set owner = null, heart = null, expires_at = null, unclean = 0, unclean_position = null, in_hand = null,
       suspect = null, suspect_deaths = 0
 where sink = ?1 and lane = ?2
