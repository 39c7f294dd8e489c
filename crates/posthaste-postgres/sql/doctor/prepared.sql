-- Prepared transactions that nobody has ended for a while. They outlive their connection and the server.
select gid, database::text as database, extract(epoch from clock_timestamp() - prepared)::float8 as age
  from pg_prepared_xacts where prepared < clock_timestamp() - make_interval(secs => $1)
 order by prepared limit 10
