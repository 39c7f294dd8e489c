-- Receipts older than the log go, in bites. The last one of each lane is its cursor and stays.
delete from posthaste_receipts
 where (sink, lane, n) in (
   select r.sink, r.lane, r.n
     from (select sink, lane, max(n) as last from posthaste_receipts group by sink, lane) l
     join posthaste_receipts r on r.sink = l.sink and r.lane = l.lane and r.n < l.last
    where r.settled_at < ?1
    limit ?2)
