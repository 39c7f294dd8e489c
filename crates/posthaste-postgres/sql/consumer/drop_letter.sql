-- A letter leaves for good, with a line in the audit (G6): its declared retention is over. Its mark stays: a copy that
-- comes later is not handled.
with gone as (
  delete from posthaste.inbox_dead_letters where consumer = $1 and letter = $2 returning topic
), noted as (
  insert into posthaste.audit (actor, action, reason, detail)
  select 'retention', 'purge', 'declared dead letter retention',
         jsonb_build_object('consumer', $1::text, 'count', 1, 'topics', array[topic]) from gone
)
select 1 from gone
