-- A lane with its slots. A new one reads what the sink's first lane reads.
insert into posthaste_lanes (sink, lane, slot_from, slot_to, filter, filter_before, filter_until, retired_at)
select ?1, ?2, ?3, ?4, filter, filter_before, filter_until, retired_at
  from posthaste_lanes where sink = ?1 and lane = ?5
    on conflict (sink, lane) do update set slot_from = excluded.slot_from, slot_to = excluded.slot_to
