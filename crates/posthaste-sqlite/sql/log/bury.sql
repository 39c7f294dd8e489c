-- Copies a dead event out of the log. Repeated: no effect.
insert into posthaste_dead_letters (sink, /*event*/, route, holds_key, attempts, error_class, error_code, error,
                                    dead_at, fingerprint, history)
select ?1, /*event of the log*/, ?3, ?4 and key is not null, ?5, ?6, ?7, ?8, ?9, ?10, ?11
  from posthaste_outbox where seq = ?2
    on conflict (sink, seq) do nothing
