-- T2: a message that is given up, beside its mark. Its number is its place in the key, for a replay.
insert into posthaste.inbox_dead_letters (consumer, message_id, topic, partition, position, address, key, order_id,
  headers, payload, published_at, attempts, history, letter, holds_key, disposition, error_class, error_code, error,
  stack, fingerprint)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10,
        timestamptz 'epoch' + interval '1 microsecond' * $11::bigint, $12, $13::text::jsonb, $14,
        $15 and $8::uuid is not null, $16, $17, $18, $19, $20, $21)
