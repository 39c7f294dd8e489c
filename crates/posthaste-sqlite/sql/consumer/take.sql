-- A partition's row is this member's. `clean` is false until it is given back: a successor that finds it so counts a
-- death.
update posthaste_inbox_partitions
   set owner = ?4, clean = 0, taken_at = ?5, in_hand = null, unclean = ?6, unclean_position = ?7, suspect = ?8,
       suspect_deaths = ?9
 where consumer = ?1 and topic = ?2 and partition = ?3
