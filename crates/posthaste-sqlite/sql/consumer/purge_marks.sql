-- Old marks of what is done, or dead with no letter any more, oldest first. Only those below the saved position of their partition go, and those without
-- a position: a start after a long stop reads from there, and must find what was done ahead of it (F69).
delete from posthaste_inbox
 where consumer = ?1
   and message_id in (
     select m.message_id from posthaste_inbox m
      where m.consumer = ?1 and m.processed_at < ?2 
        and (m.outcome = 'd' or m.outcome = 'x' and not exists (
              select 1 from posthaste_inbox_dead_letters l
               where l.consumer = m.consumer and l.message_id = m.message_id and l.repeat = 0))
        and (m.position is null
             or m.position < (select p.position from posthaste_inbox_partitions p
                               where p.consumer = m.consumer and p.topic = m.topic and p.partition = m.partition))
      order by m.processed_at limit ?3)
