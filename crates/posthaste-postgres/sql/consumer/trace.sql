-- What each consumer of this database knows of a message. Whoever only calls `admit` has neither partition nor
-- process: those names are hopped through in the marks' own index, one probe each, for it begins with them.
with recursive names as (
  (select consumer from posthaste.inbox order by consumer limit 1)
  union all
  select (select i.consumer from posthaste.inbox i where i.consumer > n.consumer order by i.consumer limit 1)
    from names n where n.consumer is not null
), known as (select consumer from posthaste.inbox_partitions
             union select name from posthaste.processes where role = 'consumer'
             union select consumer from (select consumer from names limit 1000) n where consumer is not null)
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
