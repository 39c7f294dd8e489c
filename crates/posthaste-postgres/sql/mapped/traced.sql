-- Rows of messages. One that says PROCESSED stays: a copy gets a row of its own, whose id says where it was. A letter
-- that was replayed, and what was skipped, may still be processed.
insert into /*table*/ as t (kafka_message_id, topic, partition, "offset", consumer_group, status, saga_correlation_id)
select distinct on (1) case when $6::text = 'DUPLICATE' then /*copy*/ else /*own*/ end, m.topic, m.partition,
       coalesce(m.position, -1), /*group*/, $6, m.saga
  from unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::uuid[]) as m (id, topic, partition, position, saga)
 order by 1
    on conflict (kafka_message_id) do update
   set status = excluded.status, topic = excluded.topic, partition = excluded.partition, "offset" = excluded."offset",
       processed_at = now()
 where t.status in ('DLQ', 'SKIPPED') and excluded.status in ('PROCESSED', 'DLQ')
