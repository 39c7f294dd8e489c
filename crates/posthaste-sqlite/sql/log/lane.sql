-- A lane that is in use, with everything that a taker must know. Under the write lock: it cannot change before it is
-- taken.
select l.epoch, l.owner, l.heart, l.expires_at, l.slot_from, l.slot_to, l.filter, l.filter_before, l.filter_until,
       l.unclean, l.unclean_position, l.in_hand, l.suspect, l.suspect_deaths,
       (select count(*) from posthaste_lanes a where a.sink = l.sink) as lanes_of_sink
  from posthaste_lanes l
 where l.sink = ?1 and l.lane = ?2 and l.retired_at is null
