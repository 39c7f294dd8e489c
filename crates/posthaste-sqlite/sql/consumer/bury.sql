-- A deferred message dies: its letter has its number, hence its place in the key. The row among the deferred goes in
-- the same transaction, right after. A repeat never holds its key: the message itself is done. One
-- that dies again has a new letter in place of its old one.
insert or replace into posthaste_inbox_dead_letters
       (letter, seq, consumer, message_id, topic, partition, position, address, key, order_id, headers, payload,
        published_at, repeat, holds_key, attempts, replays, disposition, error_class, error_code, error, stack, history,
        fingerprint, dead_at)
select ?2, seq, consumer, message_id, topic, partition, position, address, key, order_id, headers, payload,
       published_at, repeat, ?3 and not repeat and order_id is not null, earlier_attempts + ?4, replays, ?5, ?6, ?7, ?8,
       ?9, ?10, ?11, ?12
  from posthaste_inbox_deferred where seq = ?1
