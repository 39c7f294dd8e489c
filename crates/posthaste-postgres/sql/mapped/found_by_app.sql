-- What is known of a message that the application marks: the mark that it made here, a copy that waits, a dead letter.
-- No row: nothing. The application may have its mark in another database; then it says so itself when it is asked.
select case when d.seq is not null then 'w' when l.seq is not null then 'x' else 'd' end as outcome,
       coalesce(d.topic, l.topic, q.topic) as topic, coalesce(d.partition, l.partition, q.partition) as partition,
       case when d.seq is not null then d.position when l.seq is not null then l.position else q.position end as position,
       q.processed_at, null::text as xid
  from (values (1)) as one
  left join posthaste.inbox q on q.consumer = /*consumer*/ and q.message_id = /*id*/
  left join posthaste.inbox_deferred d on d.consumer = /*consumer*/ and d.message_id = /*id*/ and not d.repeat
  left join posthaste.inbox_dead_letters l on l.consumer = /*consumer*/ and l.message_id = /*id*/ and not l.repeat
 where q.message_id is not null or d.seq is not null or l.seq is not null
