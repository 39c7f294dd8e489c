-- Takes a lane over. The higher epoch is the fence: a settlement asks for owner and epoch under the same write lock, so
-- it comes before this and counts, or after it and is refused (G4).
update posthaste_lanes
   set owner = ?3, heart = ?4, epoch = ?5, expires_at = ?6, unclean = ?7, unclean_position = ?8, in_hand = null,
       suspect = ?9, suspect_deaths = ?10
 where sink = ?1 and lane = ?2
