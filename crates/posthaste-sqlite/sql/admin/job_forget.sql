-- Jobs that ended before ?1 go when one is written down: so the table does not grow for ever. Looked at are the oldest
-- alone, and more of them than come. Those that are not over stay, and so does what the audit says of all.
delete from posthaste_jobs
 where job in (select job from (select job, ended_at from posthaste_jobs order by job limit ?2) where ended_at < ?1)
