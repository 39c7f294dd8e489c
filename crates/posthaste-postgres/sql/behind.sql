-- Which of these keys have an event that waits, or a dead one that holds.
select k.key from unnest($2::text[]) as k (key)
 where exists (select from posthaste.deferred d where d.sink = $1 and d.key = k.key and d.holds)
    or exists (select from posthaste.dead_letters l where l.sink = $1 and l.key = k.key and l.holds_key)
