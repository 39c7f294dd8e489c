-- Of these partitions those that nobody holds, by this server's clock.
select t.topic, t.partition
  from unnest($2::text[], $3::int[]) as t (topic, partition)
  left join posthaste.inbox_partitions p on p.consumer = $1 and p.topic = t.topic and p.partition = t.partition
 where p.expires_at is null or p.expires_at <= clock_timestamp()
 order by t.topic, t.partition
