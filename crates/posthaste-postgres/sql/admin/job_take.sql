-- Takes a job that nobody runs: one that waits, or whose owner is silent, by the database's clock. A lease that ends later
-- than any that is written now is of before the clock went back. The epoch fences that owner off. A job that somebody has
-- locked is being worked on.
update posthaste.jobs
   set state = 'running', owner = $1, epoch = epoch + 1, started_at = coalesce(started_at, clock_timestamp()),
       lease_until = clock_timestamp() + make_interval(secs => $3)
 where job = (select job from posthaste.jobs
               where (state = 'queued' or (state = 'running' and (lease_until < clock_timestamp()
                      or lease_until > clock_timestamp() + make_interval(secs => 2 * $3))))
                 and ($2::bigint is null or job = $2)
               order by job limit 1 for update skip locked)
returning job, epoch
