-- What each consumer of this database knows of a message.
with known as (select consumer from posthaste.inbox_partitions
               union select name from posthaste.processes where role = 'consumer')
select k.consumer, i.outcome::text as outcome,
       i.topic || coalesce('/' || i.partition, '') || coalesce('@' || i.position, '') as place,
       i.processed_at as marked_at, i.xid::text as xid, d.reason, d.attempts,
       case when isfinite(d.due_at) then d.due_at end as due_at, d.last_error,
       array(select letter from posthaste.inbox_dead_letters l
              where l.consumer = k.consumer and l.message_id = $1 order by letter) as letters
  from known k
--native{
  left join posthaste.inbox i on i.consumer = k.consumer and i.message_id = $1
--native}
--mapped: trace
  left join lateral (select * from posthaste.inbox_deferred d
                      where d.consumer = k.consumer and d.message_id = $1 order by repeat limit 1) d on true
 where (i.consumer is not null or d.consumer is not null) and ($2::text is null or k.consumer = $2)
 order by k.consumer
