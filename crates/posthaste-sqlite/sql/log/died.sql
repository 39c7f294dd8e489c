-- A deferred event dies: its letter. The row among the deferred goes in the same transaction, right after.
insert into posthaste_dead_letters (sink, /*event*/, route, holds_key, attempts, replays, error_class, error_code,
                                    error, dead_at, fingerprint, history)
select sink, /*event*/, route, ?3 and key is not null, earlier_attempts + ?4, replays, ?5, ?6, ?7, ?8, ?9, ?10
  from posthaste_deferred where sink = ?1 and seq = ?2
    on conflict (sink, seq) do nothing
