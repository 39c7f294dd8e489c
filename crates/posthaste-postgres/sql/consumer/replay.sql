-- T2r: a letter is a deferred message again, in its old place, under its key's lock. No row: somebody was
-- quicker, and nothing is changed. A redrive ($3) brings new bytes, and the mark takes the place of the copy:
-- else the copy's redelivery would look like another redrive. An operator may leave headers out ($9).
with found as (
  select message_id, repeat from posthaste.inbox_dead_letters where consumer = $1 and letter = $2 for update
--native{
), marked as (
  update posthaste.inbox i
     set outcome = 'w', xid = pg_current_xact_id(), topic = case when $3 then $4 else i.topic end,
         partition = case when $3 then $5 else i.partition end, position = case when $3 then $6 else i.position end
    from found f
   where i.consumer = $1 and i.message_id = f.message_id and i.outcome = 'x' and not f.repeat
  returning i.message_id
--native}
), gone as (
  delete from posthaste.inbox_dead_letters l
   where l.consumer = $1 and l.letter = $2
--native{
     and (exists (select from marked) or exists (select from found f where f.repeat))
--native}
  returning *
)
insert into posthaste.inbox_deferred (seq, consumer, message_id, topic, partition, position, address, key, order_id,
  headers, payload, published_at, reason, holds, repeat, earlier_attempts, replays, due_at, error_class, error_code,
  last_error, last_error_at, history)
select g.seq, g.consumer, g.message_id, g.topic, case when $3::boolean then $5::int else g.partition end,
       case when $3 then $6::bigint else g.position end, case when $3 then $7::text else g.address end,
       case when $3 then $8::bytea else g.key end, g.order_id,
       coalesce($9::text::jsonb, g.headers), case when $3 then $10::bytea else g.payload end,
       case when $3 then timestamptz 'epoch' + interval '1 microsecond' * $11::bigint else g.published_at end,
       case when $3 then 'redriven' else 'replayed' end, not g.repeat, g.repeat, g.attempts, g.replays + 1,
       case when g.order_id is null then clock_timestamp() else 'infinity' end, g.error_class, g.error_code, g.error,
       g.dead_at, g.history
  from gone g
returning topic, order_id
