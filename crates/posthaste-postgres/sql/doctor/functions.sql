-- Functions that reading and appending rest on, and that this role cannot call or this server lacks.
select f.name from unnest(array[
         'pg_current_snapshot()', 'pg_current_xact_id()', 'pg_visible_in_snapshot(xid8, pg_snapshot)',
         'pg_snapshot_xmin(pg_snapshot)', 'pg_snapshot_xmax(pg_snapshot)', 'pg_sequence_last_value(regclass)',
         'hashtextextended(text, bigint)', 'pg_advisory_xact_lock(integer, integer)',
         'pg_try_advisory_lock(integer, integer)', 'pg_notify(text, text)']) as f (name)
 where to_regprocedure('pg_catalog.' || f.name) is null
    or not has_function_privilege('pg_catalog.' || f.name, 'execute')
