-- Copies a dead event out of the log. Repeated: no effect.
insert into posthaste_dead_letters (sink, seq, slot, id, topic, key, headers, content_type, payload, deliver_at,
                                    appended_at, route, holds_key, attempts, error_class, error_code, error, dead_at)
select ?1, o.seq, posthaste_slot(o.key, o.seq), posthaste_text(o.id), posthaste_text(o.topic),
       posthaste_text(o.key), posthaste_text(o.headers), posthaste_text(o.content_type), o.payload,
       o.deliver_at, o.appended_at, ?3, ?4 and o.key is not null, ?5, ?6, ?7, ?8, ?9
  from posthaste_outbox o where o.seq = ?2
    on conflict (sink, seq) do nothing
