-- What deferred events wait for.
select sink, reason, destination, error_code, count(*) as count, min(appended_at) as oldest_at, min(due_at) as due_at,
       max(last_error) as error
  from posthaste_deferred where /*condition*/ group by sink, reason, destination, error_code
 order by count(*) desc, min(seq) limit /*limit*/
