-- What the processes of a consumer said about themselves.
select process, version, host, started_at, seen_at, report from posthaste.processes
 where role = 'consumer' and name = $1 order by process
