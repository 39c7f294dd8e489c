-- Remembers an idempotency key; no row is changed if it is known. Under the write lock, so nobody races.
insert into posthaste_idempotency_keys (topic, key, id, appended_at) values (?1, ?2, ?3, ?4)
    on conflict (topic, key) do nothing
