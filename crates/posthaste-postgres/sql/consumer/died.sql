-- T3: a deferred message is given up, under its key's lock and its old number: out of one table, into the
-- other, in one statement. Not if somebody else had it meanwhile. Of a repeat the mark stays, and it holds
-- nobody up.
with gone as (
  delete from posthaste.inbox_deferred where consumer = $1 and seq = $2 and message_id = $14 and attempts = $3 returning *
--native{
), marked as (
  update posthaste.inbox i set outcome = 'x', xid = pg_current_xact_id()
    from gone g
   where i.consumer = $1 and i.message_id = g.message_id and not g.repeat
--native}
)
insert into posthaste.inbox_dead_letters (letter, seq, consumer, message_id, topic, partition, position, address, key,
  order_id, headers, payload, published_at, repeat, holds_key, attempts, replays, disposition, error_class, error_code,
  error, stack, history, fingerprint)
select $4::uuid, seq, consumer, message_id, topic, partition, position, address, key, order_id, headers, payload,
       published_at, repeat, $5 and holds and order_id is not null, earlier_attempts + $6, replays, $7, $8, $9, $10,
       $11, $12::text::jsonb, $13
  from gone
returning repeat
