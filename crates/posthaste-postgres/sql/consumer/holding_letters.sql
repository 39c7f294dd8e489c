-- The same for letters that hold their key: each leaves under its key's lock.
select letter, topic, order_id from posthaste.inbox_dead_letters
 where consumer = $1 and dead_at < now() - make_interval(days => $2) and holds_key
 order by dead_at
 limit 100
