-- The highest number that anything here speaks of.
select max((select coalesce(max(seq), 0) from posthaste_outbox),
           (select coalesce(max((select position from posthaste_receipts r where r.sink = l.sink and r.lane = l.lane
                                  order by n desc limit 1)), 0) from posthaste_lanes l),
           (select coalesce(max(seq), 0) from posthaste_deferred),
           (select coalesce(max(seq), 0) from posthaste_dead_letters))
