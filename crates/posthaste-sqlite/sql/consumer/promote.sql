-- The first of a queue comes due, unless a dead letter before it holds the key. Runs after all changes, in the same
-- transaction; transactions that write come one after the other. So whoever goes behind a hold is seen by the one that
-- takes the hold away, or sees that it is gone.
update posthaste_inbox_deferred
   set due_at = ?5
 where due_at = 9223372036854775807
   and seq = (select h.seq from posthaste_inbox_deferred h
               where h.consumer = ?1 and h.topic = ?2 and h.order_id = ?3 and h.holds = ?4 order by h.seq limit 1)
   and not exists (select 1 from posthaste_inbox_dead_letters l
                    where l.consumer = ?1 and l.topic = ?2 and l.order_id = ?3 and l.holds_key
                      and l.seq < posthaste_inbox_deferred.seq)
