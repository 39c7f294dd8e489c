-- A page of a consumer's deferred messages by number, by keyset.
select consumer, seq, message_id, topic, partition, position, key, reason, due_at, attempts, replays, error_code, last_error,
       last_error_at, history, repeat, published_at, deferred_at
  from posthaste_inbox_deferred
 where /*condition*/
 order by seq
