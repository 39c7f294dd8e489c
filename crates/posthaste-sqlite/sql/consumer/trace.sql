-- What each consumer of this file knows of a message.
select k.consumer, i.outcome,
       i.topic || coalesce('/' || i.partition, '') || coalesce('@' || i.position, '') as place,
       i.processed_at as marked_at, d.reason, d.attempts, d.due_at, d.last_error
  from (select consumer from posthaste_inbox where message_id = ?1
        union select consumer from posthaste_inbox_deferred where message_id = ?1) k
  left join posthaste_inbox i on i.consumer = k.consumer and i.message_id = ?1
  left join posthaste_inbox_deferred d on d.seq = (
         select seq from posthaste_inbox_deferred
          where consumer = k.consumer and message_id = ?1 order by repeat limit 1)
 order by k.consumer
