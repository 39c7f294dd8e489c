-- T3 for handlers outside: these are ours for so long, and nobody else takes them meanwhile. A death lets the time pass,
-- and they are due again.
update posthaste.inbox_deferred
   set due_at = clock_timestamp() + make_interval(secs => $3)
 where consumer = $1 and seq = any ($2::bigint[])
returning pg_postmaster_start_time() as witness
