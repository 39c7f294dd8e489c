-- Whether any key of the sink is held at all: while none is, pages are not checked.
select exists (select from posthaste.deferred d where d.sink = $1 and d.holds)
    or exists (select from posthaste.dead_letters l where l.sink = $1 and l.holds_key)
