-- What a handler appended for a message: the events of the transaction that made its mark, by a small index, if
-- they name the message as their cause, or name none and the message was alone in it. Where the transaction is
-- not known (a mark in the service's own table), those of a span of the log that name it.
with alone as (
  select count(*) = 1 as is_so
    from posthaste.inbox i
    join posthaste.inbox o on o.consumer = i.consumer and o.processed_at = i.processed_at and o.xid = i.xid
   where i.consumer = $1 and i.message_id = $2
)
select e.seq, e.id, e.topic, e.appended_at
  from posthaste.outbox e
 where e.xid::text::bigint = $3::text::bigint
   and (e.headers ->> 'causation-id' = $2 or (e.headers ->> 'causation-id' is null and (select is_so from alone)))
union all
select e.seq, e.id, e.topic, e.appended_at
  from posthaste.outbox e
 where $3 is null and e.seq >= $4 and e.seq < $5 and e.headers ->> 'causation-id' = $2
 order by seq limit 100
