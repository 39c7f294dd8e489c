-- T2: the marks. Who finds one that is there is settled: somebody else did it.
with m as (select * from unnest($2::text[], $3::text[], $4::int[], $5::bigint[])
                with ordinality as m (id, topic, partition, position, n)),
--native{
 ins as (insert into posthaste.inbox (consumer, message_id, topic, partition, position, outcome)
         select $1, id, topic, partition, position, $6::text::"char" from m order by id
             on conflict do nothing returning message_id)
--native}
--mapped: mark
select message_id from ins
