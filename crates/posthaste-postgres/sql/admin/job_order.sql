-- Somebody's order. The row is locked.
update posthaste.jobs
   set state = $2, owner = case when $2 = state then owner end,
       ended_at = case when $2 = 'cancelled' then clock_timestamp() end
 where job = $1
returning /*job*/
