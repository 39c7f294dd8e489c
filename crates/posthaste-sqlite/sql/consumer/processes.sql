-- What the processes of a consumer said about themselves: those that have spoken within a minute, and those that
-- still own something.
select * from posthaste_processes
 where role = 'consumer' and name = ?1
   and (seen_at > (strftime('%s', 'now') - 60) * 1000000
        or process in (select owner from posthaste_inbox_partitions where consumer = ?1))
 order by process
