-- What a job would do with dead letters. $1: whether it is a replay.
select /*why*/ as why, count(*) as count, max(l.letter) as last
  from posthaste.dead_letters l
 where true/*filter*/
 group by 1
