-- Deferred events that go on waiting. Of the same shape as defer.sql.
update posthaste.deferred d
   set attempts = a.attempts, reason = a.reason, route = a.route, destination = a.destination,
       holds = d.holds or (a.holds and d.key is not null and octet_length(d.key) <= 1024),
       due_at = case a.due when 'behind' then 'infinity'
                           when 'delivery' then coalesce(d.deliver_at, clock_timestamp())
                           else clock_timestamp() + make_interval(secs => a.delay) end,
       error_class = a.class, last_error = a.error, last_error_at = clock_timestamp()
  from unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::int[], $8::text[],
              $9::float8[], $10::text[], $11::text[])
       as a (seq, route, destination, reason, holds, attempts, due, delay, class, error)
 where d.sink = $1 and d.seq = a.seq
