-- The members that were heard of within the life of a lease.
select substr(process, 8) as member, coalesce((report ->> 'held')::int, 0) as held
  from posthaste.processes
 where role = 'member' and name = $1 and seen_at > clock_timestamp() - interval '1 microsecond' * $2::bigint
 order by process
