-- Each cursor with its base: the last receipt that was not a settlement or a hand-over. What it had
-- handled then is not counted; what it handled since is in the receipts after it.
select l.sink, l.lane, l.slot_from, l.slot_to, l.filter, l.filter_before, l.filter_until, b.n as base_n, b.position, b.snapshot::text,
       l.filter_n > b.n and exists (select from posthaste.receipts f where f.sink = l.sink and f.lane = l.lane
         and f.n = l.filter_n and f.xid >= s.opened_xid) as filter_changed,
       (select coalesce(sum(u.count), 0)::bigint from posthaste.receipts r, unnest(r.segments, r.counts) u (segment, count)
         where r.sink = l.sink and r.lane = l.lane and r.n > b.n and r.xid >= s.opened_xid and u.segment = s.segment) as counted,
       (select coalesce(sum(u.sum), 0)::bigint from posthaste.receipts r, unnest(r.segments, r.sums) u (segment, sum)
         where r.sink = l.sink and r.lane = l.lane and r.n > b.n and r.xid >= s.opened_xid and u.segment = s.segment) as summed
  from posthaste.segments s
 cross join posthaste.lanes l
  join lateral (select n, position, snapshot from posthaste.receipts r
                 where r.sink = l.sink and r.lane = l.lane and r.kind in ('born', 'rewind', 'repair', 'relane')
                 order by n desc limit 1) b on true
 where s.segment = $1 and l.retired_at is null
