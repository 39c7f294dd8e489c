-- An event of the log waits again for a sink that has passed it, due at once. One that waits already goes on as it is.
insert into posthaste_deferred (sink, /*event*/, route, destination, reason, holds, attempts,
                                earlier_attempts, replays, due_at, deferred_at)
select ?1, /*event of the log*/, '', '', 'replayed', key is not null, 0, 0, 1, ?3, ?3
  from posthaste_outbox where seq = ?2
    on conflict (sink, seq) do nothing
