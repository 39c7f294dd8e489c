-- Events that a lane settled since an instant: its newest receipts, as many as a minute can hold, whatever the history.
select coalesce(sum(count) filter (where settled_at > ?3), 0)
  from (select count, settled_at from posthaste_receipts where sink = ?1 and lane = ?2 order by n desc limit 6000)
