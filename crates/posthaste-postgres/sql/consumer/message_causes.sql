-- What a consumer's deferred messages wait for.
select reason, error_code, (array_agg(last_error order by seq desc))[1] as error, count(*) as count,
       min(deferred_at) as oldest_at, nullif(min(due_at), 'infinity') as due_at
  from posthaste.inbox_deferred
 where consumer = $1/*filter*/
 group by reason, error_code
 order by count(*) desc, min(seq) limit $2
