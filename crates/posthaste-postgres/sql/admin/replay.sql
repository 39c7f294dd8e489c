-- Letters become deferred events again, in their place: same number, so that events of their key that
-- wait go after them. One statement: no snapshot shows an event in both tables or in neither. An event
-- that waits already (its sink was rewound) goes on waiting as it is. The attempts of its former life
-- are kept; the retry policy starts anew.
-- A letter that no route took goes to every sink whose routes take its topic now; unroutable.sql has made
-- sure that there is one.
with gone as (
  delete from posthaste.dead_letters where letter = any ($1) returning *
), target as (
  select g.letter, g.sink from gone g where g.error_code <> 'route.none'
  union all
  select g.letter, s.sink
    from gone g
    join (select distinct sink, filter from posthaste.lanes where retired_at is null and sink <> 'unrouted') s
      on s.filter = ''
      or (left(s.filter, 1) = '+' and g.topic like any (string_to_array(substr(s.filter, 2), chr(10))))
   where g.error_code = 'route.none'
), back as (
  insert into posthaste.deferred (sink, /*event*/, route, destination, reason, holds, attempts, earlier_attempts,
                                  replays, due_at, error_class, error_code, last_error, last_error_at, history)
  select t.sink, /*event*/, route, '', 'replayed', key is not null and octet_length(key) <= 1024, 0, attempts, replays + 1,
         clock_timestamp(), error_class, error_code, error, dead_at, history
    from gone g join target t using (letter)
      on conflict (sink, seq) do nothing
)
select t.sink, g.key, g.id, g.topic from gone g join target t using (letter)
