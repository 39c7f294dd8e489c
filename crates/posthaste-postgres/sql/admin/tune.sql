-- Lays one setting over the file's. $3: microseconds. Two operators at once: the row's lock puts them in order, and the
-- last one is in force with its own name and end.
insert into posthaste.controls (kind, name, settings, actor, reason, set_at, until)
values ('outbox', $1, to_jsonb($2::bigint), $4, $5, clock_timestamp(), timestamptz 'epoch' + $3 * interval '1 microsecond')
    on conflict (kind, name) do update
       set settings = excluded.settings, actor = excluded.actor, reason = excluded.reason, set_at = excluded.set_at,
           until = excluded.until
