-- A letter becomes a deferred event of a sink, in its place: same number, so that events of its key that wait go after
-- it. One that waits already (its sink was rewound) goes on waiting as it is. The attempts of its former life are kept;
-- the retry policy starts anew.
insert into posthaste_deferred (sink, /*event*/, route, destination, reason, holds, attempts,
                                earlier_attempts, replays, due_at, error_class, last_error, last_error_at, deferred_at,
                                error_code, history)
select ?2, /*event*/, route, '', 'replayed', key is not null, 0, attempts, replays + 1, ?3, error_class, error, dead_at, ?3,
       error_code, history
  from posthaste_dead_letters where letter = ?1
    on conflict (sink, seq) do nothing
