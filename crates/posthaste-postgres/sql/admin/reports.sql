-- What relays say about themselves.
select process, version, host, started_at, seen_at, report from posthaste.processes
 where role = 'relay' and process = any ($1) order by process
