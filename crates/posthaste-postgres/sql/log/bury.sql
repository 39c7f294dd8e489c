-- Copies dead events out of the log. Repeated: no effect.
insert into posthaste.dead_letters (sink, seq, slot, id, topic, key, headers, content_type, payload, deliver_at,
                                    appended_at, route, holds_key, attempts, error_class, error_code, error)
select $1, o.seq, o.slot, o.id, o.topic, o.key, o.headers, o.content_type, o.payload, o.deliver_at,
       o.appended_at, d.route, d.holds and o.key is not null and octet_length(o.key) <= 1024, d.attempts, d.class, d.code, d.error
  from unnest($2::bigint[], $3::text[], $4::boolean[], $5::int[], $6::text[], $7::text[], $8::text[])
       as d (seq, route, holds, attempts, class, code, error)
  join posthaste.outbox o on o.seq = d.seq
    on conflict (sink, seq) do nothing
