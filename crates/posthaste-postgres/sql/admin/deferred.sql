-- Deferred events of a sink by what they wait for, counted up to a bound; with the number of all, and the age of the
-- oldest that is overdue: those come first in the index.
select reason, destination, error_code, (array_agg(last_error order by seq desc))[1] as error, count(*) as count,
       min(appended_at) as oldest_at, nullif(min(due_at), 'infinity') as due_at,
       sum(count(*)) over ()::bigint as total,
       coalesce(max(max(age) filter (where due)) over (), 0)::float8 as overdue
  from (select seq, reason, destination, error_code, last_error, appended_at, due_at,
               extract(epoch from statement_timestamp() - appended_at) as age, due_at <= statement_timestamp() as due
          from posthaste.deferred where sink = $1 order by due_at limit $2) d
 group by reason, destination, error_code
 order by count(*) desc, min(seq) limit 20
