-- The consumers of this database: those with a partition, a process or a control. With who set what, and why.
select consumer, coalesce(c.paused, false) as paused, c.rate_limit, c.actor, c.reason, c.set_at, c.until,
       clock_timestamp() as now
  from (select consumer from posthaste.inbox_partitions
        union select name from posthaste.processes where role = 'consumer'
        union select name from posthaste.controls where kind = 'consumer') k
  left join posthaste.controls c on c.kind = 'consumer' and c.name = k.consumer and (c.until is null or c.until > clock_timestamp())
 where $1::text is null or consumer = $1
 order by consumer
