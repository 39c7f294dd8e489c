-- Whether the group with the commit id $1, whose answer was lost, has committed: for sure, and for ever. If its transaction
-- is still under way (its backend may not know yet that we are gone), this waits for its end, as long as `lock_timeout`
-- allows. If it committed, its row is there. If not, ours is: then it never will, its own insert fails.
--
-- $2 says later, should the answer be lost once more, that the row is ours. $3 makes this a transaction that writes in any
-- case: its commit comes back when a synchronous standby has everything up to here, the group's commit with it.
with ours as (
  insert into posthaste.gateway_commits (id) values ($1) on conflict do nothing returning id
), ours_for_sure as (
  insert into posthaste.gateway_commits (id) select $2 from ours
), flush as (
  insert into posthaste.gateway_commits (id) values ($3)
)
select exists (select from ours) as fenced,
       case when current_setting('synchronous_commit') in ('off', 'local', 'remote_write')
            then set_config('synchronous_commit', 'on', true) end
