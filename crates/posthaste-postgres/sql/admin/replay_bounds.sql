-- How far every lane of a sink has come, whether relays serve it, and what it reads.
select coalesce(min(coalesce(r.position, 0)), 0) as position, bool_or(l.retired_at is null) as served, max(l.filter) as filter
  from posthaste.lanes l
  left join lateral (select position from posthaste.receipts r
                      where r.sink = l.sink and r.lane = l.lane order by r.n desc limit 1) r on true
 where l.sink = $1
