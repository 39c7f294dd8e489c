-- A member renews what it holds. The epoch says whose the lease is: who took it meanwhile has raised it. One that
-- has ended and that nobody took is renewed too. The rows were locked in the order in which everybody locks them.
update posthaste.inbox_partitions p
   set expires_at = clock_timestamp() + interval '1 microsecond' * $5::bigint
  from unnest($2::text[], $3::int[], $4::bigint[]) as h (topic, partition, epoch)
 where p.consumer = $1 and p.topic = h.topic and p.partition = h.partition and p.epoch = h.epoch
returning p.topic, p.partition
