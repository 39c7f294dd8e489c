-- Which of these keys have an event that waits, or a dead one that holds. Subqueries with a limit: the
-- planner must ask an index for each key, and cannot collect all that is held first.
select k.key from unnest($2::text[]) as k (key)
 where coalesce((select true from posthaste.deferred d where d.sink = $1 and d.key = k.key and d.holds limit 1),
                (select true from posthaste.dead_letters l where l.sink = $1 and l.key = k.key and l.holds_key limit 1),
                false)
