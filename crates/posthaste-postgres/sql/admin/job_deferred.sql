-- The next deferred events of a job, locked, and why one is left alone. Rows that a settlement changes at this moment are
-- waited for.
select d.sink, d.seq, d.id, d.topic, /*why*/ as why
  from posthaste.deferred d
 where ($1::text is null or (d.sink, d.seq) > ($1, $2)) and d.seq <= $3/*filter*/
 order by d.sink, d.seq limit $4
   for update of d
