-- The rows of partitions that were assigned, in order.
insert into posthaste.inbox_partitions (consumer, topic, partition)
select $1, topic, partition from unnest($2::text[], $3::int[]) as p (topic, partition) order by topic, partition
    on conflict do nothing
