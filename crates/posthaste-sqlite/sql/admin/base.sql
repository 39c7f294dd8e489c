-- A lane's next state, behind its last receipt.
insert into posthaste_receipts (sink, lane, n, epoch, kind, position, settled_at)
select ?1, ?2, coalesce(max(n), 0) + 1, ?3, ?4, ?5, ?6 from posthaste_receipts where sink = ?1 and lane = ?2
