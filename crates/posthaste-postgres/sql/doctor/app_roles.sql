-- Roles that were granted INSERT on the log, on all of it or on columns: those that applications use. The
-- owner and superusers may do everything anyway.
select distinct coalesce(r.rolname::text, 'public') as role
  from pg_class c
 cross join lateral (
   select (aclexplode(c.relacl)).*
   union all
   select (aclexplode(a.attacl)).* from pg_attribute a where a.attrelid = c.oid and a.attacl is not null) g
  left join pg_roles r on r.oid = g.grantee
 where c.oid = 'posthaste.outbox'::regclass and g.privilege_type = 'INSERT'
   and not coalesce(r.rolsuper, false) and g.grantee <> c.relowner
 order by 1
