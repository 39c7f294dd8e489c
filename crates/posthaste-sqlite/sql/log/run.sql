-- What waits behind an event of a key, in order.
select seq, due_at, destination, route from posthaste_deferred
 where sink = ?1 and key = ?2 and holds and seq > ?3
 order by seq limit ?4
