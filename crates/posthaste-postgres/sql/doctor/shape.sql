-- Parts of the schema that somebody may have changed by hand: defaults, indexes, persistence, trigger.
select (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
         where d.adrelid = 'posthaste.outbox'::regclass and a.attname = 'seq') as seq,
       (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
         where d.adrelid = 'posthaste.outbox'::regclass and a.attname = 'xid') as xid,
       (select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum
         where d.adrelid = 'posthaste.outbox'::regclass and a.attname = 'segment') as segment,
       array(select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
              where i.inhparent = 'posthaste.outbox'::regclass
                and not exists (select from pg_index x join pg_attribute a on a.attrelid = x.indrelid and a.attnum = x.indkey[0]
                                 where x.indrelid = c.oid and x.indisunique and x.indisvalid and x.indnkeyatts = 1
                                   and x.indpred is null and a.attname = 'seq')
              order by c.relname) as unindexed,
       (select relpersistence::text from pg_class where oid = 'posthaste.lease_tokens'::regclass) as tokens,
       (select tgenabled::text from pg_trigger
         where tgrelid = 'posthaste.outbox'::regclass and tgname = 'outbox_wakeup') as trigger
