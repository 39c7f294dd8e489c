-- What became of a message: its outcome, where it came from, and whether its dead letter is there.
select m.outcome, m.topic, m.partition, m.position,
       exists (select 1 from posthaste_inbox_dead_letters l
                where l.consumer = m.consumer and l.message_id = m.message_id and l.repeat = 0)
  from posthaste_inbox m
 where m.consumer = ?1 and m.message_id = ?2
