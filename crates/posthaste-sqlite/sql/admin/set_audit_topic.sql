-- From now on the audit goes there. The write lock is held: acts come before it or after it.
insert into posthaste_state (name, value) values ('audit_topic', ?1)
    on conflict (name) do update set value = excluded.value
