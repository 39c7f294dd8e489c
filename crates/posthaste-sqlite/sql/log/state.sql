-- Writes a value of the outbox down.
insert into posthaste_state (name, value) values (?1, ?2)
 on conflict (name) do update set value = excluded.value
