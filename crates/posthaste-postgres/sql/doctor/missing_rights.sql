-- Which rights a role lacks, by their place in the list. Catalog lookups only. A function that is not there is not
-- lacking.
select r.place
  from unnest($2::text[], $3::text[], $4::text[], $5::text[])
       with ordinality as r (kind, object, col, privilege, place)
 where not case r.kind
             when 'schema' then has_schema_privilege(coalesce($1, current_user), r.object, r.privilege)
             when 'table' then has_table_privilege(coalesce($1, current_user), r.object, r.privilege)
             when 'column' then has_column_privilege(coalesce($1, current_user), r.object, r.col, r.privilege)
             when 'function' then has_function_privilege(coalesce($1, current_user), to_regprocedure(r.object), r.privilege)
             else has_sequence_privilege(coalesce($1, current_user), r.object, r.privilege)
           end
 order by r.place
