-- Consumers that have left a trace, or one of them.
select name from (select consumer as name from posthaste_inbox_partitions
                  union select name from posthaste_processes where role = 'consumer'
                  union select consumer from posthaste_inbox_dead_letters)
 where ?1 is null or name = ?1
 order by name
