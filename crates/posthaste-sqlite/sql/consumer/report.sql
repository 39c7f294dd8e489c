-- What a process says about itself.
insert into posthaste_processes (process, role, name, version, host, started_at, seen_at, report)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    on conflict (process) do update set seen_at = excluded.seen_at, report = excluded.report
