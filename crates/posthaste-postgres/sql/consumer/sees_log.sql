-- Whether this login may read the log. A consumer's own may not.
select has_table_privilege('posthaste.outbox', 'select') as sees
