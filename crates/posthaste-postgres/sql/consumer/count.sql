-- How much waits and how much is dead, counted up to a bound: a gauge must not cost more than the work (F82).
select pg_postmaster_start_time() as witness, d.count as deferred, d.age as oldest_deferred,
       (select count(*) from (select from posthaste.inbox_dead_letters where consumer = $1 limit $2) l) as dead_letters
  from (select count(*) as count, extract(epoch from clock_timestamp() - min(deferred_at))::float8 as age
          from (select deferred_at from posthaste.inbox_deferred where consumer = $1 limit $2) d) d
