-- What waits in a log that no relay has ever read, up to a bound: then there is no sink yet whose backlog could be counted.
-- Where a lane was ever made, the log is not touched.
select count(*) as count, min(appended_at) as oldest_at
  from (select appended_at from posthaste_outbox where not exists (select 1 from posthaste_lanes) order by seq limit ?1)
