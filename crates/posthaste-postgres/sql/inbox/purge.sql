-- A bounded number of the oldest marks of a consumer. SKIP LOCKED: two that purge at once share the work instead
-- of waiting for each other, so they cannot deadlock (F79).
with old as (
  select consumer, message_id from posthaste.inbox
   where consumer = $1 and processed_at < now() - make_interval(secs => $2)
   order by processed_at
   limit $3
   for update skip locked
)
delete from posthaste.inbox i using old
 where i.consumer = old.consumer and i.message_id = old.message_id
