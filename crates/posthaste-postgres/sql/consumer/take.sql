-- Partitions have a new owner, under their locks. It has not given them back until it says so.
update posthaste.inbox_partitions p
   set owner = $2, clean = false, taken_at = clock_timestamp(), in_hand = null, unclean = t.unclean,
       unclean_position = t.unclean_position, suspect = t.suspect, suspect_deaths = t.suspect_deaths
  from unnest($3::text[], $4::int[], $5::int[], $6::bigint[], $7::bigint[], $8::int[])
       as t (topic, partition, unclean, unclean_position, suspect, suspect_deaths)
 where p.consumer = $1 and p.topic = t.topic and p.partition = t.partition
