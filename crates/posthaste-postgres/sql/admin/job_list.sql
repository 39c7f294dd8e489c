-- Jobs before a number, newest first, by keyset.
select /*job*/ from posthaste.jobs
 where ($1::bigint is null or job < $1) and (not $2 or state in ('queued', 'running', 'paused'))
 order by job desc limit $3
