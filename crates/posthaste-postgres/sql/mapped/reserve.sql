-- Whose a mapped table is, in which rows of two consumers could not be told apart. The first who asks has it:
-- of two at once one insert waits for the other, and then finds it.
with taken as (
  insert into posthaste.processes (process, role, name, version, host, started_at, seen_at, report)
  values ('table ' || $2::text, 'table', $1::text, '', '', now(), now(), '{}')
      on conflict (process) do update set seen_at = excluded.seen_at
  returning name
)
select name from taken
