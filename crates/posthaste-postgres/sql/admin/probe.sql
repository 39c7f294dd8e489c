-- Probes into the part of the log that was not looked at row by row: short runs of numbers at even
-- distances, $2 numbers each, hence at most that many rows. $3 and $4 as in scan.sql.
select count(*) filter (where s.pending) as pending,
       coalesce(sum(s.age) filter (where s.pending), 0)::float8 as ages
  from unnest($1::bigint[]) as p (number)
 cross join lateral (
   select extract(epoch from statement_timestamp() - appended_at) as age,
          seq > ($4::bigint[])[width_bucket(slot, $3::smallint[])]/*condition*/ as pending
     from posthaste.outbox where seq > p.number and seq <= p.number + $2) s
