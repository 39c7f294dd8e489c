-- Letters become deferred events again, in their place: same number, so that events of their key that
-- wait go after them. One statement: no snapshot shows an event in both tables or in neither. An event
-- that waits already (its sink was rewound) goes on waiting as it is. The attempts of its former life
-- are kept; the retry policy starts anew.
with gone as (
  delete from posthaste.dead_letters where letter = any ($1) returning *
), back as (
  insert into posthaste.deferred (sink, seq, slot, id, topic, key, headers, content_type, payload, deliver_at,
                                  appended_at, route, destination, reason, holds, attempts, earlier_attempts,
                                  replays, due_at, error_class, last_error, last_error_at)
  select sink, seq, slot, id, topic, key, headers, content_type, payload, deliver_at, appended_at, route, '',
         'replayed', key is not null, 0, attempts, replays + 1, clock_timestamp(), error_class, error, dead_at
    from gone
      on conflict (sink, seq) do nothing
)
select sink, key, id from gone
