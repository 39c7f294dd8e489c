-- The letters of a message, or the letter of this id, with payload.
select letter, consumer, message_id, topic, partition, position, address, key, headers,
       octet_length(payload)::bigint as payload_bytes, payload, published_at, dead_at, attempts, replays,
       disposition, error_class, error_code, error, stack, history::text as history, fingerprint, holds_key, repeat
  from posthaste.inbox_dead_letters
 where consumer = $1 and (message_id = $2 or letter = $3)
 order by letter
