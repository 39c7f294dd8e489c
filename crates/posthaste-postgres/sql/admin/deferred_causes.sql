-- What deferred events wait for.
select sink, reason, destination, error_code, (array_agg(last_error order by seq desc))[1] as error, count(*) as count,
       min(appended_at) as oldest_at, nullif(min(due_at), 'infinity') as due_at
  from posthaste.deferred where true/*filter*/
 group by sink, reason, destination, error_code
 order by count(*) desc, min(seq) limit $1
