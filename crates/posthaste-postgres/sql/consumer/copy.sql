-- Copies of a range's messages, under their keys' locks. Their rows hold nobody up: they are a second queue
-- of their key. Without repeat only what gets its mark now; with it once more what is there already.
--
-- Never beyond the saved position, as this statement sees it: what is there may be under way, and its copy would let
-- later ones of its key pass. Whoever read the range saw an older position, and a seek backwards may have come between.
-- One that commits after this snapshot comes after the copy.
with m as (
  select m.* from unnest($2::text[], $3::text[], $4::int[], $5::bigint[], $6::text[], $7::bytea[], $8::uuid[], $9::text[],
                       $10::bytea[], $11::bigint[])
       with ordinality as m (id, topic, partition, position, address, key, order_id, headers, payload, published_at, n)
    join posthaste.inbox_partitions p on p.consumer = $1 and p.topic = m.topic and p.partition = m.partition
     and m.position < p.position
--native{
), marked as (
  insert into posthaste.inbox (consumer, message_id, topic, partition, position, outcome)
  select $1, id, topic, partition, position, 'w' from m where not $12::boolean order by id
      on conflict do nothing
  returning message_id
--native}
--mapped: copy
)
insert into posthaste.inbox_deferred (consumer, message_id, topic, partition, position, address, key, order_id, headers,
  payload, published_at, reason, holds, repeat, due_at)
select $1, id, topic, partition, position, address, key, order_id, headers::jsonb, payload,
       timestamptz 'epoch' + interval '1 microsecond' * published_at, 'replayed', false, $12,
       case when order_id is null then clock_timestamp() else 'infinity' end
  from m
 where $12 or id in (select message_id from marked)
 order by n
    on conflict do nothing
returning topic, order_id
