-- What an insert into a table needs: the rights that are missing, the columns that must be given, and whether these
-- columns are unique together.
select current_user::text as role,
       array(select r from unnest($2::text[]) r where not has_table_privilege($1, r)) as missing,
       array(select a.attname::text from pg_attribute a
              where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped and a.attnotnull
                and not a.atthasdef and a.attidentity = '' order by a.attnum) as required,
       exists (select from pg_index i
                where i.indrelid = to_regclass($1) and i.indisunique and i.indisvalid and i.indpred is null
                  and i.indexprs is null and i.indnkeyatts = cardinality($3::text[])
                  and (select bool_and(a.attname = any ($3::text[])) from pg_attribute a
                        where a.attrelid = i.indrelid and a.attnum = any (i.indkey[0:i.indnkeyatts - 1]))) as is_unique
