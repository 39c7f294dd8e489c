-- The partitions of a consumer.
select topic, partition, position, position_time, saved_at, log_id, seeks, owner, clean, unclean
  from posthaste.inbox_partitions where consumer = $1 order by topic, partition
