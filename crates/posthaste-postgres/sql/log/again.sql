-- Deferred events that go on waiting. Of the same shape as defer.sql. The history keeps ten attempts; that an outage
-- goes on is no news in it.
update posthaste.deferred d
   set attempts = a.attempts, reason = a.reason, route = a.route, destination = a.destination,
       holds = d.holds or (a.holds and d.key is not null and octet_length(d.key) <= 1024),
       due_at = case a.due when 'behind' then 'infinity'
                           when 'delivery' then coalesce(d.deliver_at, clock_timestamp())
                           else clock_timestamp() + make_interval(secs => a.delay) end,
       error_class = a.class, error_code = a.code, last_error = a.error, last_error_at = clock_timestamp(),
       history = case when a.reason = 'outage' and d.history -> -1 ->> 'code' is not distinct from a.code then d.history
                      else posthaste.attempts(d.history, a.attempt) end
  from unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::int[], $8::text[],
              $9::float8[], $10::text[], $11::text[], $12::text[], $13::text[])
       as a (seq, route, destination, reason, holds, attempts, due, delay, class, error, code, attempt)
 where d.sink = $1 and d.seq = a.seq
