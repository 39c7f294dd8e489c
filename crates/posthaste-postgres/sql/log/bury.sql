-- Copies dead events out of the log. Repeated: no effect.
insert into posthaste.dead_letters (sink, /*event*/, route, holds_key, attempts, error_class, error_code, error,
                                    fingerprint, history)
select $1, /*o.event*/, d.route, d.holds and o.key is not null and octet_length(o.key) <= 1024, d.attempts, d.class, d.code, d.error,
       d.fingerprint, posthaste.attempts(null, d.attempt)
  from unnest($2::bigint[], $3::text[], $4::boolean[], $5::int[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::text[])
       as d (seq, route, holds, attempts, class, code, error, fingerprint, attempt)
  join posthaste.outbox o on o.seq = d.seq
    on conflict (sink, seq) do nothing
