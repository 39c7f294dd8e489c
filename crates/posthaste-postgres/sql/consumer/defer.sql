-- T2: copies of messages that wait, under the key's lock and beside their marks. All of them hold their key:
-- with only the first one holding, others stick or overtake. Numbers are drawn in the order of the list. A message
-- that waits already is not copied again: its mark was a service's, and was deleted there.
insert into posthaste.inbox_deferred (consumer, message_id, topic, partition, position, address, key, order_id,
  headers, payload, published_at, reason, holds, attempts, due_at, error_class, error_code, last_error, last_error_at,
  history)
select $1, m.id, m.topic, m.partition, m.position, m.address, m.key, m.order_id, m.headers::jsonb, m.payload,
       timestamptz 'epoch' + interval '1 microsecond' * m.published_at,
       case when m.delay is null then 'held' else 'retry' end, true, m.attempts,
       coalesce(clock_timestamp() + make_interval(secs => m.delay), 'infinity'), m.class, m.code, m.error,
       case when m.error is not null then clock_timestamp() end, m.history::jsonb
  from unnest($2::text[], $3::text[], $4::int[], $5::bigint[], $6::text[], $7::bytea[], $8::uuid[], $9::text[],
              $10::bytea[], $11::bigint[], $12::int[], $13::text[], $14::float8[], $15::text[], $16::text[],
              $17::text[])
       with ordinality as m (id, topic, partition, position, address, key, order_id, headers, payload, published_at,
                             attempts, history, delay, class, code, error, n)
 order by m.n
    on conflict do nothing
