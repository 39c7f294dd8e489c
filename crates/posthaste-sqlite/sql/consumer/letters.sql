-- Letters as lists show them: of a payload its length alone.
select letter, consumer, message_id, topic, partition, position, address, key, headers, length(payload) as payload_bytes,
       null as payload, published_at, dead_at, attempts, replays, disposition, error_class, error_code, error, stack,
       history, fingerprint, holds_key, repeat
  from posthaste_inbox_dead_letters
