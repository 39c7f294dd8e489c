-- Where the audit goes; no row: nowhere.
select value from posthaste_state where name = 'audit_topic'
