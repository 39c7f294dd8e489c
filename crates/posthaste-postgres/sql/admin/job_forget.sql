-- Jobs that ended long ago go when one is written down: so the table does not grow for ever, and whoever writes jobs needs
-- nobody else for it. Looked at are the oldest alone, and more of them than come. Those that are not over stay, and so does
-- what the audit says of all. Behind the insert: whoever waits here for another one has nothing that that one waits for.
delete from posthaste.jobs
 where job = any (array(select o.job from (select job, ended_at from posthaste.jobs order by job limit $2) o
                         where o.ended_at < clock_timestamp() - make_interval(secs => $1)))
