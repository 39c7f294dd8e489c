-- An event of the log waits again for a sink that has passed it, due at once. One that waits already goes on as it is.
insert into posthaste_deferred (sink, seq, slot, id, topic, key, headers, content_type, payload, deliver_at, appended_at,
                                route, destination, reason, holds, attempts, earlier_attempts, replays, due_at,
                                deferred_at)
select ?1, o.seq, posthaste_slot(o.key, o.seq), posthaste_text(o.id), posthaste_text(o.topic), posthaste_text(o.key),
       posthaste_text(o.headers), posthaste_text(o.content_type), o.payload, o.deliver_at, o.appended_at, '', '',
       'replayed', o.key is not null, 0, 0, 1, ?3, ?3
  from posthaste_outbox o where o.seq = ?2
    on conflict (sink, seq) do nothing
