-- The partitions that are taken, locked in the order in which everybody locks them.
select p.topic, p.partition, p.position, p.position_time, p.log_id, p.seeks, p.owner, p.clean, p.unclean,
       p.unclean_position, p.in_hand, p.suspect, p.suspect_deaths, pg_postmaster_start_time() as witness,
       extract(epoch from p.saved_at - p.taken_at)::float8 as held,
       exists (select from posthaste.inbox_partitions o
                where o.consumer = $1 and o.topic = p.topic and o.position is not null) as knows_topic
  from posthaste.inbox_partitions p
 where p.consumer = $1
   and (p.topic, p.partition) in (select * from unnest($2::text[], $3::int[]))
 order by p.topic, p.partition
   for update of p
