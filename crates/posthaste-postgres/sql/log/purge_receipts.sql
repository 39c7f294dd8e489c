-- Receipts behind the oldest live segment go, in chunks. The last one of each lane is its cursor and its
-- base is what audits start from: both stay. Marks that go with them only lower `low`, which is safe.
-- PostgreSQL 14 orders transaction ids, but has no min() of them.
delete from posthaste.receipts p
 where (p.sink, p.lane, p.n) in (
   select r.sink, r.lane, r.n from posthaste.receipts r
    where r.xid < (select opened_xid from posthaste.segments where turn is not null order by opened_xid limit 1)
      and r.kind in ('settle', 'takeover')
      and r.n < (select max(n) from posthaste.receipts l where l.sink = r.sink and l.lane = r.lane)
    order by r.xid limit $1)
returning 1
