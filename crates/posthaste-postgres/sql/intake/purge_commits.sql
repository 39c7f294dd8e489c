-- The same for commits. Whoever looks for one does so within seconds.
with old as (
  select id from posthaste.gateway_commits
   where at < clock_timestamp() - make_interval(secs => $1)
   order by at
   limit $2
   for update skip locked
)
delete from posthaste.gateway_commits g using old where g.id = old.id
returning true
