-- A partition has a row from its first assignment on.
insert into posthaste_inbox_partitions (consumer, topic, partition) values (?1, ?2, ?3) on conflict do nothing
