-- Whether a job waits that nobody runs: nobody has begun, or whoever ran it is silent.
select exists (select 1 from posthaste_jobs
                where state in ('queued', 'running', 'paused') and (state = 'queued' or (state = 'running' and lease_until < ?1)))
