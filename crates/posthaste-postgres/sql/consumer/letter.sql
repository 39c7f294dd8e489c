-- T2r: the open letter of a message, before its key's lock is known. What is true of it is asked again under
-- the lock.
select letter, topic, order_id from posthaste.inbox_dead_letters
 where consumer = $1 and message_id = $2 and not repeat
