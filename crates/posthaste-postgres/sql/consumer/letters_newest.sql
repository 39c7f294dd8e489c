-- The same as letters.sql, newest first.
select letter, consumer, message_id, topic, partition, position, address, key, headers,
       octet_length(payload)::bigint as payload_bytes, null::bytea as payload, published_at, dead_at, attempts, replays,
       disposition, error_class, error_code, error, stack, history::text as history, fingerprint, holds_key, repeat
  from posthaste.inbox_dead_letters
 where consumer = $1 and letter < $2 /*filter*/
 order by letter desc
 limit $3
