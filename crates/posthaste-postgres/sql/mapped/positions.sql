-- Saved positions, as they stand in our own table now, under its locks: the next to read.
insert into /*table*/ as o (consumer_group, topic, partition, committed_offset)
select /*group*/, p.topic, p.partition, p.position from posthaste.inbox_partitions p
 where p.consumer = $1 and p.position is not null
   and (p.topic, p.partition) in (select * from unnest($2::text[], $3::int[]))
 order by p.topic, p.partition
    on conflict (consumer_group, topic, partition) do update
   set committed_offset = excluded.committed_offset, last_updated = now()
 where o.committed_offset <> excluded.committed_offset
