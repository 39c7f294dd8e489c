-- New bases of cursors: a receipt behind the last one, under a higher epoch. It is the fence against the
-- former owner, whose next receipt has the same number; and what audits count from. The mark is a number
-- that was read before this transaction had an xid.
insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot)
select b.sink, b.lane,
       coalesce((select max(r.n) from posthaste.receipts r where r.sink = b.sink and r.lane = b.lane), 0) + 1,
       $1, $2, $3, b.position, b.snapshot::pg_snapshot
  from unnest($4::text[], $5::smallint[], $6::bigint[], $7::text[]) as b (sink, lane, position, snapshot)
