-- A member of a group that shares plain logs lives, and holds so many of them.
insert into posthaste.processes (process, role, name, version, host, started_at, seen_at, report)
values ('member:' || $2, 'member', $1, $3, '', clock_timestamp(), clock_timestamp(), jsonb_build_object('held', $4::int))
    on conflict (process) do update set seen_at = excluded.seen_at, report = excluded.report
