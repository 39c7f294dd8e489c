-- A page of a consumer's deferred messages by number, by keyset.
select consumer, seq, message_id, topic, partition, position, key, reason, nullif(due_at, 'infinity') as due_at, attempts,
       replays, error_code, last_error, last_error_at, history::text as history, repeat, published_at, deferred_at
  from posthaste.inbox_deferred d
 where consumer = $1 and ($2::bigint is null or seq > $2)/*filter*/
 order by seq limit $3
