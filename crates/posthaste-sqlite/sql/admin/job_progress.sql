-- How far a job is, in the transaction of what was done. Without a position it stays where it is: the owner lives.
update posthaste_jobs
   set position = coalesce(?2, position), done = done + ?3, left_alone = left_alone + ?4, reasons = ?5,
       state = ?6, error = coalesce(?7, error), lease_until = ?8, ended_at = ?9
 where job = ?1
