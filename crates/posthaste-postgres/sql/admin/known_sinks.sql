-- Sinks that have lanes, retired ones included: their events may still wait, and be acted on.
select distinct sink from posthaste.lanes order by sink
