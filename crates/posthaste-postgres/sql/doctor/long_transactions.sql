-- Transactions that are old enough to hold up retention. Without pg_read_all_stats only one's own are seen.
select pid, coalesce(usename::text, '?') as who, coalesce(datname::text, '?') as database,
       extract(epoch from clock_timestamp() - xact_start)::float8 as age
  from pg_stat_activity
 where pid <> pg_backend_pid() and xact_start < clock_timestamp() - make_interval(secs => $1)
   and (backend_xid is not null or backend_xmin is not null)
 order by xact_start limit 10
