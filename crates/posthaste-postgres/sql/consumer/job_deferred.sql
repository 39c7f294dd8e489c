-- The next deferred messages of a job, locked, and why one is left alone.
select d.seq, d.message_id, d.topic, /*why*/ as why
  from posthaste.inbox_deferred d
 where d.consumer = $1 and ($2::bigint is null or d.seq > $2) and d.seq <= $3/*filter*/
 order by d.seq limit $4
   for update of d
