-- An operator moves a partition. Whoever saves a position that was made before this writes nothing.
insert into posthaste.inbox_partitions as p (consumer, topic, partition, position, log_id, saved_at, seeks)
values ($1, $2, $3, $4, $5, clock_timestamp(), 1)
    on conflict (consumer, topic, partition) do update
   set position = excluded.position, position_time = null, log_id = excluded.log_id, saved_at = excluded.saved_at,
       seeks = p.seeks + 1
returning seeks
