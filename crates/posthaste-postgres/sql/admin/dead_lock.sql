-- Locks the next chunk of what a filter means. A letter that another act or the retention has in hand is
-- theirs: waiting for it would only find it gone.
select letter from posthaste.dead_letters where true/*filter*/ order by letter limit $1 for update skip locked
