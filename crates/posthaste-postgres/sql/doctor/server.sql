-- Facts about the server and this connection, in one look. reset_val is what a session gets that sets
-- nothing itself.
select version() as version,
       current_setting('server_version_num')::int as number,
       pg_is_in_recovery() as standby,
       current_setting('transaction_read_only')::boolean as read_only,
       current_setting('server_encoding') as encoding,
       current_setting('fsync')::boolean as fsync,
       current_setting('full_page_writes')::boolean as full_page_writes,
       current_setting('autovacuum')::boolean as autovacuum,
       current_setting('max_prepared_transactions')::int as prepared_max,
       (select reset_val from pg_settings where name = 'synchronous_commit') as synchronous_commit,
       array(select coalesce('role ' || r.rolname, 'database ' || d.datname, 'all')
               from pg_db_role_setting s
               left join pg_roles r on r.oid = s.setrole
               left join pg_database d on d.oid = s.setdatabase
              where 'synchronous_commit=off' = any (s.setconfig)
                and (s.setdatabase = 0 or d.datname = current_database())) as asynchronous,
       (extract(epoch from clock_timestamp()) * 1000000)::bigint as now
