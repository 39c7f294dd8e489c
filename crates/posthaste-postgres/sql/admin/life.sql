-- One event's life with each sink. $1 its number, $2 slot, $3 topic, $4 key, $5 xid (null: only a copy is left, so
-- every cursor has passed it).
-- The receipt that passed it is found by halving: a cursor goes forward, so whether a receipt covers the event
-- turns from no to yes once. After a rewind it may do so twice, and one of the two is found. Receipts are purged
-- from the oldest on; if the oldest that is kept covers the event, nobody knows when it was passed.
select l.sink, l.lane, l.retired_at is not null as retired, coalesce(last.position, 0) as position,
       l.filter = ''
         or (left(l.filter, 1) = '+' and $3 like any (string_to_array(substr(l.filter, 2), chr(10))))
         or (left(l.filter, 1) = '-' and not $3 like any (string_to_array(substr(l.filter, 2), chr(10))))
         or (l.filter_before is not null and $1 <= l.filter_until
             and (l.filter_before = ''
               or (left(l.filter_before, 1) = '+' and $3 like any (string_to_array(substr(l.filter_before, 2), chr(10))))
               or (left(l.filter_before, 1) = '-' and not $3 like any (string_to_array(substr(l.filter_before, 2), chr(10)))))) as takes,
       found.n is not null as passed, found.n, found.epoch, found.settled_at,
       found.n > 1 and found.n = found.oldest as unknown_when,
       coalesce(found.kind = 'born', false) as before_start,
       d.reason, d.attempts, d.earlier_attempts, d.replays, nullif(d.due_at, 'infinity') as due_at, d.route,
       d.destination, d.error_class, d.last_error, d.last_error_at, dl.letter,
       case when d.due_at = 'infinity' then greatest(
         (select max(seq) from (select e.seq from posthaste.deferred e
                                 where e.sink = l.sink and e.key = $4 and e.holds and e.seq < $1
                                 order by e.seq desc limit 1) e),
         (select max(seq) from (select e.seq from posthaste.dead_letters e
                                 where e.sink = l.sink and e.key = $4 and e.holds_key and e.seq < $1
                                 order by e.seq desc limit 1) e)) end as behind,
       case when d.holds or dl.holds_key then
         (select count(*) from (select from posthaste.deferred e
                                 where e.sink = l.sink and e.key = $4 and e.holds and e.seq > $1 limit 1000) e)
       else 0 end as holds_back
  from posthaste.lanes l
  left join lateral (select position from posthaste.receipts r
                      where r.sink = l.sink and r.lane = l.lane order by r.n desc limit 1) last on true
  left join lateral (
    with recursive halves as (
      select min(r.n) as oldest, min(r.n) as low, max(r.n) + 1 as high
        from posthaste.receipts r where r.sink = l.sink and r.lane = l.lane
      union all
      select h.oldest, case when m.covers then h.low else h.middle + 1 end, case when m.covers then h.middle else h.high end
        from (select oldest, low, high, (low + high) / 2 as middle from halves where low < high) h
       cross join lateral (
         select coalesce((select r.position >= $1
                                 and ($5::text is null or pg_visible_in_snapshot($5::text::xid8, r.snapshot)
                                      or coalesce(r.late_position >= $1 and pg_visible_in_snapshot($5::text::xid8, r.target), false))
                            from posthaste.receipts r
                           where r.sink = l.sink and r.lane = l.lane and r.n >= h.middle
                           order by r.n limit 1), false) as covers) m
    )
    select r.n, r.epoch, r.kind, r.settled_at, h.oldest
      from halves h
      join posthaste.receipts r on r.sink = l.sink and r.lane = l.lane and r.n = h.low
     where h.low >= h.high
  ) found on true
  left join posthaste.deferred d on d.sink = l.sink and d.seq = $1
  left join posthaste.dead_letters dl on dl.sink = l.sink and dl.seq = $1
 where $2 between l.slot_from and l.slot_to
 order by l.sink
