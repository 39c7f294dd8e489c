-- Tables that look like an outbox, by name and by shape. Our own schema is left out, and so is the server's catalogue.
select c.table_schema || '.' || c.table_name || ' (' || string_agg(c.column_name, ', ' order by c.ordinal_position) || ')'
  from information_schema.columns c
 where c.table_schema not in ('pg_catalog', 'information_schema', $1)
   and (c.table_name ilike '%outbox%' or c.table_name ~* '(^|_)(events?|messages?)(_queue|_store|_log)?$')
 group by c.table_schema, c.table_name
having count(*) >= 3 and bool_or(c.column_name ~* '(payload|data|body|message|content)')
 order by c.table_name not ilike '%outbox%', 1 limit $2
