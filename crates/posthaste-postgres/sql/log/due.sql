-- Deferred events whose time has come: the due ones, each followed by the run that waits behind it, so
-- that a key with many waiting events does not need a round trip for each. Only the first holding event
-- of a key is a head, and a run ends before the first event that may not go, and at a dead letter that
-- holds the key: nothing of a key is passed over. Bounded in events, and in bytes by the running sum. Plain
-- reads: only the lane's owner changes these rows, and operators under their own lock. The time is the
-- statement's: the index cannot be asked for what is due by a clock that moves, and would be walked to its end.
with heads as materialized (
  select d.seq, d.key, d.holds, row_number() over (order by d.due_at, d.seq) as rank
    from (select * from posthaste.deferred d
           where d.sink = $1 and d.due_at <= statement_timestamp() and d.slot between $2 and $3
             and not d.destination = any ($5) and not d.route = any ($6)
             and ($7::text is null or d.destination = $7)
             and (not d.holds or not exists (select from posthaste.deferred e
                    where e.sink = $1 and e.key = d.key and e.holds and e.seq < d.seq))
           order by d.due_at limit $4) d
), run as (
  select h.rank, h.seq from heads h
  union all
  select h.rank, f.seq
    from heads h
   cross join lateral (
     select f.seq, bool_and(f.due_at = 'infinity' and not f.destination = any ($5) and not f.route = any ($6)
                            and ($7::text is null or f.destination = $7)
                            and not exists (select from posthaste.dead_letters l
                                             where l.sink = $1 and l.key = h.key and l.holds_key and l.seq < f.seq))
                   over (order by f.seq) as goes
       from (select f.seq, f.due_at, f.destination, f.route from posthaste.deferred f
              where f.sink = $1 and f.key = h.key and f.holds and f.seq > h.seq
              order by f.seq limit 32) f) f
   where h.holds and $4 > 1 and f.goes
), picked as (
  select r.rank, r.seq,
         sum(coalesce(octet_length(d.payload), 0)) over (order by r.rank, r.seq) - coalesce(octet_length(d.payload), 0) as before,
         row_number() over (order by r.rank, r.seq) as place
    from run r join posthaste.deferred d on d.sink = $1 and d.seq = r.seq
)
select /*d.event*/, d.attempts, d.reason
  from picked p join posthaste.deferred d on d.sink = $1 and d.seq = p.seq
 where p.before < $8 and p.place <= $4
 order by p.place
