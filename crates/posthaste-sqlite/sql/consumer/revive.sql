-- A dead letter is among the deferred again, under its old number: before everything of its key that waits (F57).
-- Attempts begin anew, and what was spent before is remembered. Where it has a key it waits behind it, and the first
-- of the key is promoted right after.
insert into posthaste_inbox_deferred
       (seq, consumer, message_id, topic, partition, position, address, key, order_id, headers, payload, published_at,
        reason, holds, repeat, earlier_attempts, replays, due_at, error_class, error_code, last_error, last_error_at,
        history, deferred_at)
select seq, consumer, message_id, topic, partition, position, address, key, order_id, headers, payload, published_at,
       ?3, not repeat, repeat, attempts, replays + 1, case when order_id is null then ?4 else 9223372036854775807 end,
       error_class, error_code, error, dead_at, history, ?4
  from posthaste_inbox_dead_letters where consumer = ?1 and letter = ?2
