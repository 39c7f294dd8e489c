-- What a job would do with deferred events.
select /*why*/ as why, count(*) as count, max(d.seq) as last
  from posthaste.deferred d where true/*filter*/
 group by 1
