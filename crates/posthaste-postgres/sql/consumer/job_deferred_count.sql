-- What a job would do with the deferred messages of a consumer.
select /*why*/ as why, count(*) as count, max(d.seq) as last
  from posthaste.inbox_deferred d
 where d.consumer = $1/*filter*/
 group by 1
