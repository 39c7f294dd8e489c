-- What waits behind a message in its queue, up to a dead letter that holds the key. Whoever takes it ends at the first
-- one whose own time has not come.
select d.seq, d.due_at
  from posthaste_inbox_deferred h
  join posthaste_inbox_deferred d
    on d.consumer = h.consumer and d.topic = h.topic and d.order_id = h.order_id and d.holds = h.holds and d.seq > h.seq
 where h.seq = ?1
   and not exists (select 1 from posthaste_inbox_dead_letters l
                    where l.consumer = d.consumer and l.topic = d.topic and l.order_id = d.order_id
                      and l.holds_key and l.seq < d.seq)
 order by d.seq
 limit ?2
