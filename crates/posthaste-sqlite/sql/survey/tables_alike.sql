-- Tables that look like an outbox, by name and by shape. Our own are left out, and so are SQLite's.
select m.name || ' (' || group_concat(c.name, ', ') || ')'
  from sqlite_master m join pragma_table_info(m.name) c
 where m.type = 'table' and m.name not like 'posthaste\_%' escape '\' and m.name not like 'sqlite\_%' escape '\'
   and (m.name like '%outbox%' or m.name like '%events' or m.name like '%messages')
 group by m.name
having count(*) >= 3 and sum(c.name like '%payload%' or c.name like '%data%' or c.name like '%body%') > 0
 order by m.name limit ?1
