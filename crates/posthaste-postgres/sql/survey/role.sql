-- Who we are here, and what a role needs that sets an outbox up.
select current_user::text as role,
       current_setting('server_version') as version,
       has_database_privilege(current_database(), 'CREATE') as makes_schemas,
       coalesce((select rolsuper or rolcreaterole from pg_roles where rolname = current_user), false) as makes_roles,
       pg_is_in_recovery() as is_standby
