-- T4 when there is nothing to write: what operators want, how often they moved these partitions, and whether these
-- have an owner. One statement.
select pg_postmaster_start_time() as witness, coalesce(c.paused, false) as paused, c.rate_limit, f.seeks, f.owned
  from (select coalesce(array_agg(coalesce(p.seeks, -1) order by s.n), '{}') as seeks,
               coalesce(array_agg(p.owner is not null order by s.n), '{}') as owned
          from unnest($2::text[], $3::int[]) with ordinality as s (topic, partition, n)
          left join posthaste.inbox_partitions p
            on p.consumer = $1 and p.topic = s.topic and p.partition = s.partition) as f
  left join posthaste.controls c on c.kind = 'consumer' and c.name = $1 and (c.until is null or c.until > clock_timestamp())
