-- A bounded number of the oldest marks that are done, or dead with no letter any more, and only below the saved position of their partition: a
-- start after a long stop meets everything above it again (F69). SKIP LOCKED: those that purge at once share
-- the work (F79).
with old as (
  select i.message_id from posthaste.inbox i
   where i.consumer = $1 and i.processed_at < now() - make_interval(days => $2) 
     and (i.outcome = 'd' or i.outcome = 'x' and not exists (
           select from posthaste.inbox_dead_letters l
            where l.consumer = $1 and l.message_id = i.message_id and not l.repeat))
     and (i.position is null or exists (
           select from posthaste.inbox_partitions p
            where p.consumer = $1 and p.topic = i.topic and p.partition = i.partition and p.position > i.position))
   order by i.processed_at
   limit 1000
   for update of i skip locked
)
delete from posthaste.inbox i using old where i.consumer = $1 and i.message_id = old.message_id
returning 1
