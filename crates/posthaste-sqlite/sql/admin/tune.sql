-- Lays one setting over the file's. The last one is in force, with its own name and end.
insert into posthaste_controls (kind, name, settings, actor, reason, set_at, until)
values ('outbox', ?1, ?2, ?3, ?4, ?5, ?6)
    on conflict (kind, name) do update
       set settings = excluded.settings, actor = excluded.actor, reason = excluded.reason, set_at = excluded.set_at,
           until = excluded.until
