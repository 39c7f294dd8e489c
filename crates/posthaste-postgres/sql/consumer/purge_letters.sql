-- Dead letters that hold nobody up and whose declared retention is over, with a line in the audit (G6). Their marks stay.
with old as (
  select letter from posthaste.inbox_dead_letters
   where consumer = $1 and dead_at < now() - make_interval(days => $2) and not holds_key
   order by dead_at
   limit 1000
   for update skip locked
), gone as (
  delete from posthaste.inbox_dead_letters l using old where l.letter = old.letter
  returning l.topic
), noted as (
  insert into posthaste.audit (actor, action, reason, detail)
  select 'retention', 'purge', 'declared dead letter retention',
         jsonb_build_object('consumer', $1::text, 'count', count(*), 'topics', (array_agg(distinct topic))[1:10])
    from gone having count(*) > 0
)
select 1 from gone
