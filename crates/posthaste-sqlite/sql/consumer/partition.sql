-- A partition, and whether the consumer has a position anywhere in its topic: then one without is a new partition.
select p.*, exists (select 1 from posthaste_inbox_partitions k
                     where k.consumer = p.consumer and k.topic = p.topic and k.position is not null) as knows_topic
  from posthaste_inbox_partitions p
 where p.consumer = ?1 and p.topic = ?2 and p.partition = ?3
