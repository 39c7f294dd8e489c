-- Whether these leases are still those of who asks, in order.
select coalesce(p.epoch = h.epoch and p.expires_at is not null, false) as held
  from unnest($2::text[], $3::int[], $4::bigint[]) with ordinality as h (topic, partition, epoch, n)
  left join posthaste.inbox_partitions p on p.consumer = $1 and p.topic = h.topic and p.partition = h.partition
 order by h.n
