-- These are due now. Their rows are locked.
update posthaste.deferred d set due_at = clock_timestamp()
  from unnest($1::text[], $2::bigint[]) as p (sink, seq)
 where d.sink = p.sink and d.seq = p.seq
