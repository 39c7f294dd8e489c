-- Renews a lease, by its owner and under its epoch only. Under the write lock: whoever took the lane has raised the
-- epoch, and this changes nothing.
update posthaste_lanes set expires_at = ?5, heart = ?6
 where sink = ?1 and lane = ?2 and epoch = ?3 and owner = ?4
