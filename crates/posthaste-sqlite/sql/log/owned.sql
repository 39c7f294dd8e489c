-- Whether a lane is still the asker's, under the write lock: nobody can take it between this and the commit (G4). An
-- expired lease that nobody took is still its owner's: the epoch is what fences, not the clock.
select 1 from posthaste_lanes where sink = ?1 and lane = ?2 and epoch = ?3 and owner = ?4
