-- What a mark would say: outcome, place and time. No row: there is none.
select case when d.seq is not null then 'w' when l.seq is not null then 'x' else 'd' end as outcome,
       coalesce(d.topic, l.topic, t.topic) as topic, coalesce(d.partition, l.partition, t.partition) as partition,
       case when d.seq is not null then d.position when l.seq is not null then l.position
            else nullif(t."offset", -1) end as position,
       t.processed_at, null::text as xid
  from /*keys*/ q
  left join posthaste.inbox_deferred d on d.consumer = /*consumer*/ and d.message_id = /*id*/ and not d.repeat
  left join posthaste.inbox_dead_letters l on l.consumer = /*consumer*/ and l.message_id = /*id*/ and not l.repeat
  left join /*traced*/
 where q./*key*/ = /*value*/
