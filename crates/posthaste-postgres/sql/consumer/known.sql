-- The consumers of this database: those with a partition, a process or a control.
select consumer, coalesce(c.paused, false) as paused, c.rate_limit
  from (select consumer from posthaste.inbox_partitions
        union select name from posthaste.processes where role = 'consumer'
        union select name from posthaste.controls where kind = 'consumer') k
  left join posthaste.controls c on c.kind = 'consumer' and c.name = k.consumer
 where $1::text is null or consumer = $1
 order by consumer
