-- Takes a job that nobody runs: one that waits, or whose owner is silent. A lease that ends later than any that is written
-- now is of before the clock went back. The epoch fences that owner off.
update posthaste_jobs
    set state = 'running', owner = ?1, epoch = epoch + 1, started_at = coalesce(started_at, ?3), lease_until = ?4
  where job = (select job from posthaste_jobs
                where (state = 'queued' or (state = 'running' and (lease_until < ?3 or lease_until > 2 * ?4 - ?3)))
                  and (?2 is null or job = ?2) order by job limit 1)
 returning job, epoch
