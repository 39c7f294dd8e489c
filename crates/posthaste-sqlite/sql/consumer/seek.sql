-- An operator moves a partition. Whoever saves a position that was made before this writes nothing.
insert into posthaste_inbox_partitions (consumer, topic, partition, position, log_id, saved_at, seeks)
values (?1, ?2, ?3, ?4, ?5, ?6, 1)
    on conflict (consumer, topic, partition) do update
   set position = excluded.position, position_time = null, log_id = excluded.log_id, saved_at = excluded.saved_at,
       seeks = seeks + 1
