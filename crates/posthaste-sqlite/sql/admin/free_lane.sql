-- Takes a lane from its owner: under the new epoch nothing of the former one settles any more.
update posthaste_lanes
   set epoch = ?3, owner = null, heart = null, expires_at = null, unclean = 0, unclean_position = null, in_hand = null,
       suspect = null, suspect_deaths = 0
 where sink = ?1 and lane = ?2
