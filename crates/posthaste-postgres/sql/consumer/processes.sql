-- What the processes of a consumer said about themselves: those that have spoken within a minute, and those that
-- still own something.
select process, version, host, started_at, seen_at, report from posthaste.processes
 where role = 'consumer' and name = $1
   and (seen_at > clock_timestamp() - interval '1 minute'
        or process in (select p.owner from posthaste.inbox_partitions p where p.consumer = $1))
 order by process
