-- T4 when there is nothing to write: what operators want, and how often they moved these partitions. One statement.
select pg_postmaster_start_time() as witness, coalesce(c.paused, false) as paused, c.rate_limit,
       array(select coalesce(p.seeks, -1)
               from unnest($2::text[], $3::int[]) with ordinality as s (topic, partition, n)
               left join posthaste.inbox_partitions p
                 on p.consumer = $1 and p.topic = s.topic and p.partition = s.partition
              order by s.n) as seeks
  from (values (1)) as one
  left join posthaste.controls c on c.kind = 'consumer' and c.name = $1
