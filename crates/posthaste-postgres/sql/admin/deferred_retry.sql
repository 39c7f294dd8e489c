-- The next events of a filter are due now. Not what waits behind another of its key, or for its own time, and not what
-- is due already: so a second chunk finds others, and the last one nothing. Rows that a settlement changes at this moment
-- are left to it.
with picked as (
  select sink, seq from posthaste.deferred
   where due_at > clock_timestamp() and isfinite(due_at) and reason <> 'scheduled'/*filter*/
   order by sink, seq limit $1 for update skip locked
)
update posthaste.deferred d set due_at = clock_timestamp()
  from picked p where d.sink = p.sink and d.seq = p.seq
returning d.id, d.topic
