-- The first holding event of a key comes due, unless a dead letter before it holds the key. Runs after all changes of
-- the settlement, in the same transaction, and transactions that write come one after the other.
update posthaste_deferred
   set due_at = ?3
 where sink = ?1 and due_at = ?4
   and seq = (select h.seq from posthaste_deferred h where h.sink = ?1 and h.key = ?2 and h.holds order by h.seq limit 1)
   and not exists (select 1 from posthaste_dead_letters l
                    where l.sink = ?1 and l.key = ?2 and l.holds_key and l.seq < posthaste_deferred.seq)
