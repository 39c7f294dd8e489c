-- What relays say about themselves.
select process, version, host, started_at, seen_at, report from posthaste_processes
 where role = 'relay' order by process
