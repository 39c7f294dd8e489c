-- What a process says about itself. A text that is too long once the server has written it is left out: it must not keep
-- the positions beside it from being saved.
insert into posthaste.processes (process, role, name, version, host, started_at, seen_at, report)
select $1, $2, $3, $4, $5, timestamptz 'epoch' + interval '1 microsecond' * $6::bigint, clock_timestamp(),
       case when octet_length(r::text) <= 8192 then r else '{}' end
  from (select $7::text::jsonb) as said (r)
    on conflict (process) do update
   set role = excluded.role, name = excluded.name, version = excluded.version, host = excluded.host,
       started_at = excluded.started_at, seen_at = excluded.seen_at, report = excluded.report
