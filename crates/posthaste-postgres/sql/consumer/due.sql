-- T3: the first messages of their queues whose time has come, each with its key's lock or without (somebody
-- else is at it). Nobody is waited for: the rows by skip locked, the keys by try.
select h.seq, h.order_id is null or pg_try_advisory_xact_lock(1347375956,
         hashtext($1::text || chr(31) || h.topic || chr(31) || h.order_id::text)) as ours
  from posthaste.due_heads($1, $2) h
 order by h.due_at, h.seq
