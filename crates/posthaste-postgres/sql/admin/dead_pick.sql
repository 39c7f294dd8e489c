-- The letters that a chunk means. No locks: what is gone when they are asked for was somebody else's.
select letter from posthaste.dead_letters where true/*filter*/ order by letter limit $1
