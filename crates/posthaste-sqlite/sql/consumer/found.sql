-- What a save answers of a partition: how often an operator moved it, and whether it has an owner. Who gave it back
-- stays in its row.
select seeks, owner is not null and not clean
  from posthaste_inbox_partitions
 where consumer = ?1 and topic = ?2 and partition = ?3
