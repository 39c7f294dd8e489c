-- A lane that goes back and has handled what its former routes took reads by its present ones alone. The
-- former filter would bring events that no route of the sink takes any more, and that were delivered.
update posthaste.lanes l set filter_before = null, filter_until = 0
  from unnest($1, $2) as w (sink, lane)
 where l.sink = w.sink and l.lane = w.lane
