-- Prepared transactions that nobody has ended for a while. They outlive their connection and the server. One that wrote
-- to the inbox is named sooner: whoever gets a message that it marked waits for it. Reading locks nobody out. Locks
-- of a prepared transaction have no process; which are its own is known by the lock on its xid.
select gid, database::text as database, extract(epoch from clock_timestamp() - prepared)::float8 as age, inbox
  from pg_prepared_xacts p
 cross join lateral (
   select exists (select from pg_locks x join pg_locks l using (virtualtransaction)
                   where x.pid is null and x.transactionid = p.transaction
                     and l.pid is null and l.mode <> 'AccessShareLock'
                     and p.database = current_database() and l.relation = 'posthaste.inbox'::regclass) as inbox) l
 where prepared < clock_timestamp() - make_interval(secs => case when inbox then $2 else $1 end)
 order by prepared limit 10
