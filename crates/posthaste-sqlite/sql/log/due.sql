-- Deferred events whose time has come. Of a key that is held only the first is one: whatever is left out here (a closed
-- destination, a paused route) still stands before its successors. Walked in order of the index, so a million that wait
-- cost nothing. A plain read: only the lane's owner changes these rows, and operators in transactions of their own.
select d.seq, d.key, d.holds
  from posthaste_deferred d
 where d.sink = ?1 and d.due_at <= ?2 and d.slot between ?3 and ?4
   and d.destination not in (select value from json_each(?5))
   and d.route not in (select value from json_each(?6))
   and (?7 is null or d.destination = ?7)
   and (not d.holds or not exists (select 1 from posthaste_deferred e
          where e.sink = d.sink and e.key = d.key and e.holds and e.seq < d.seq))
 order by d.due_at
 limit ?8
