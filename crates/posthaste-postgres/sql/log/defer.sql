-- Copies events that wait out of the log. The rows are still there: a segment is only truncated when
-- every cursor has handled it, and this transaction is what handles them. Repeated: no effect.
insert into posthaste.deferred (sink, /*event*/, route, destination, reason, holds, attempts, due_at, error_class,
                                error_code, last_error, last_error_at, history)
select $1, /*o.event*/, d.route, d.destination, d.reason, d.holds and o.key is not null and octet_length(o.key) <= 1024, d.attempts,
       case d.due when 'behind' then 'infinity'
                  when 'delivery' then coalesce(o.deliver_at, clock_timestamp())
                  else clock_timestamp() + make_interval(secs => d.delay) end,
       d.class, d.code, d.error, case when d.error is not null then clock_timestamp() end, posthaste.attempts(null, d.attempt)
  from unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::boolean[], $7::int[], $8::text[],
              $9::float8[], $10::text[], $11::text[], $12::text[], $13::text[])
       as d (seq, route, destination, reason, holds, attempts, due, delay, class, error, code, attempt)
  join posthaste.outbox o on o.seq = d.seq
    on conflict (sink, seq) do nothing
