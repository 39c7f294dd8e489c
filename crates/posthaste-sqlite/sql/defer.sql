-- Copies an event that waits out of the log. The row is still there: events are removed only behind every cursor, and
-- this transaction is what moves the cursor. Repeated: no effect.
insert into posthaste_deferred (sink, seq, slot, id, topic, key, headers, content_type, payload, deliver_at, appended_at,
                                route, destination, reason, holds, attempts, due_at, error_class, last_error,
                                last_error_at, deferred_at)
select ?1, o.seq, posthaste_slot(o.key, o.seq), posthaste_text(o.id), posthaste_text(o.topic),
       posthaste_text(o.key), posthaste_text(o.headers), posthaste_text(o.content_type), o.payload,
       o.deliver_at, o.appended_at, ?3, ?4, ?5, ?6 and o.key is not null, ?7, coalesce(?8, o.deliver_at, ?11), ?9, ?10,
       case when ?10 is not null then ?11 end, ?11
  from posthaste_outbox o where o.seq = ?2
    on conflict (sink, seq) do nothing
