-- Deferred events of a sink, counted up to a bound, and the age of the oldest that is overdue among them:
-- those come first in the index.
select count(*) as count,
       coalesce(max(age) filter (where due), 0)::float8 as oldest
  from (select extract(epoch from statement_timestamp() - appended_at) as age, due_at <= statement_timestamp() as due
          from posthaste.deferred where sink = $1 order by due_at limit $2) d
