-- Whether a key has an event that waits, or a dead one that holds.
select exists (select 1 from posthaste_deferred where sink = ?1 and key = ?2 and holds)
    or exists (select 1 from posthaste_dead_letters where sink = ?1 and key = ?2 and holds_key)
