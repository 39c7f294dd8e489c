-- Dead letters that hold nobody up and whose declared retention is over. Their marks stay.
with old as (
  select letter from posthaste.inbox_dead_letters
   where consumer = $1 and dead_at < now() - make_interval(days => $2) and not holds_key
   order by dead_at
   limit 1000
   for update skip locked
)
delete from posthaste.inbox_dead_letters l using old where l.letter = old.letter
returning 1
