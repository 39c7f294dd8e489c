-- Copies an event that waits out of the log. The row is still there: events are removed only behind every cursor, and
-- this transaction is what moves the cursor. Repeated: no effect.
insert into posthaste_deferred (sink, /*event*/, route, destination, reason, holds, attempts, due_at,
                                error_class, last_error, last_error_at, deferred_at, error_code, history)
select ?1, /*event of the log*/, ?3, ?4, ?5, ?6 and key is not null, ?7, coalesce(?8, deliver_at, ?11), ?9, ?10,
       case when ?10 is not null then ?11 end, ?11, ?12, ?13
  from posthaste_outbox where seq = ?2
    on conflict (sink, seq) do nothing
