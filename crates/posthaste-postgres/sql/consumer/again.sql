-- T3: a deferred message failed and is tried again, under its key's lock. Not if somebody else had it
-- meanwhile; in another life of the database its number may be another message's.
update posthaste.inbox_deferred
   set attempts = $4, due_at = clock_timestamp() + make_interval(secs => $5), error_class = $6, error_code = $7,
       last_error = $8, last_error_at = clock_timestamp(), history = $9::text::jsonb
 where consumer = $1 and seq = $2 and message_id = $10 and attempts = $3
returning seq
