-- What the first of a sink's events wait for.
select sink, reason, destination, error_code, count(*) as count, min(appended_at) as oldest_at, min(due_at) as due_at,
       max(last_error) as error
  from (select * from posthaste_deferred where sink = ?1 order by due_at limit ?2)
 group by sink, reason, destination, error_code order by count(*) desc, min(seq) limit 20
