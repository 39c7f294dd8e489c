-- Tables of the outbox for which autovacuum is switched off.
select c.relname from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = $1 and c.relkind = 'r'
   and exists (select from unnest(c.reloptions) o
                where o ~ '^autovacuum_enabled=(f|n|of|0)')
 order by c.relname
