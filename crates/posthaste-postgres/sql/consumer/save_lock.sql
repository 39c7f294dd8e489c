-- T4 locks its rows before, in order: an owner and a zombie must not deadlock.
select from posthaste.inbox_partitions p
 where p.consumer = $1 and (p.topic, p.partition) in (select * from unnest($2::text[], $3::int[]))
 order by p.topic, p.partition
   for update of p
