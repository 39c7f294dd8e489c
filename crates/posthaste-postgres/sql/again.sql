-- Deferred events that go on waiting.
update posthaste.deferred d
   set attempts = a.attempts, reason = a.reason, destination = a.destination, holds = d.holds or (a.holds and d.key is not null),
       due_at = clock_timestamp() + make_interval(secs => a.delay),
       error_class = a.class, last_error = a.error, last_error_at = clock_timestamp()
  from unnest($2::bigint[], $3::int[], $4::text[], $5::text[], $6::boolean[], $7::float8[], $8::text[], $9::text[])
       as a (seq, attempts, reason, destination, holds, delay, class, error)
 where d.sink = $1 and d.seq = a.seq
