-- Sinks of these letters that no relay serves any more: what is replayed for them would wait for ever. The
-- letters are locked. One that no route took goes to whoever takes its topic now, so its sink says nothing.
select distinct l.sink from posthaste.dead_letters l
 where l.letter = any ($1) and l.error_code <> 'route.none'
   and not exists (select from posthaste.lanes s where s.sink = l.sink and s.retired_at is null)
 order by l.sink
