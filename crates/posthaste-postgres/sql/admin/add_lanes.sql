-- Lanes that are missing, as copies of their sink's first one but for number and slots. After
-- keep_lanes.sql, which has taken its owner away.
insert into posthaste.lanes
select r.*
  from posthaste.lanes l
 cross join generate_series(1, $1 - 1) as n
 cross join lateral jsonb_populate_record(l, jsonb_build_object(
              'lane', n, 'slot_from', 1024 * n / $1, 'slot_to', 1024 * (n + 1) / $1 - 1)) as r
 where l.lane = 0
    on conflict (sink, lane) do nothing
