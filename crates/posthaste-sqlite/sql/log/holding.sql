-- Whether any key of the sink is held at all: while none is, pages are not checked.
select exists (select 1 from posthaste_deferred where sink = ?1 and holds)
    or exists (select 1 from posthaste_dead_letters where sink = ?1 and holds_key)
