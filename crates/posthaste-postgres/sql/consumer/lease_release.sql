-- Ends leases, so that nobody has to wait. What somebody else took meanwhile is left alone.
update posthaste.inbox_partitions p set expires_at = null
  from unnest($2::text[], $3::int[], $4::bigint[]) as h (topic, partition, epoch)
 where p.consumer = $1 and p.topic = h.topic and p.partition = h.partition and p.epoch = h.epoch
