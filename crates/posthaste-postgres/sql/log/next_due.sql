-- Milliseconds until the next deferred event is due, and whether any key is held.
select (select (extract(epoch from d.due_at - clock_timestamp()) * 1000)::float8 from posthaste.deferred d
         where d.sink = $1 and d.due_at > statement_timestamp() and d.due_at < 'infinity'
         order by d.due_at limit 1),
       exists (select from posthaste.deferred d where d.sink = $1 and d.holds)
    or exists (select from posthaste.dead_letters l where l.sink = $1 and l.holds_key)
