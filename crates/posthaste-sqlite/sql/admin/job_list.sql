-- Jobs before a number, newest first, by keyset.
select * from posthaste_jobs
 where job < ?1 and (not ?2 or state in ('queued', 'running', 'paused')) order by job desc limit ?3
