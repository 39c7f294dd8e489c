-- Events that a lane delivered since an instant: its newest receipts, as many as a minute can hold, whatever the history.
select coalesce(sum(coalesce(delivered, count)) filter (where settled_at > ?3), 0)
  from (select count, delivered, settled_at from posthaste_receipts where sink = ?1 and lane = ?2 order by n desc limit 6000)
