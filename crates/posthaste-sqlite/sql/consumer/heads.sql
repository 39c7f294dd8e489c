-- Deferred messages that may run, by when they are due: the first of its queue, with no dead letter before it that
-- holds the key. Walked in order of the index, so a hundred thousand that wait cost nothing (F51).
select d.seq, d.due_at
  from posthaste_inbox_deferred d
 where d.consumer = ?1 and d.due_at <= ?2
   and (d.order_id is null
        or not exists (select 1 from posthaste_inbox_deferred e
                        where e.consumer = d.consumer and e.topic = d.topic and e.order_id = d.order_id
                          and e.holds = d.holds and e.seq < d.seq)
       and not exists (select 1 from posthaste_inbox_dead_letters l
                        where l.consumer = d.consumer and l.topic = d.topic and l.order_id = d.order_id
                          and l.holds_key and l.seq < d.seq))
 order by d.due_at
 limit ?3
