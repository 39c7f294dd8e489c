-- Before a message is given up: the letter that it has already. It is that of an earlier repeat, or its mark is a
-- service's and was deleted there. The new letter takes its place.
delete from posthaste.inbox_dead_letters l
 where l.consumer = $1 and l.message_id = $2
   and l.repeat = coalesce((select d.repeat from posthaste.inbox_deferred d
                             where d.consumer = $1 and d.seq = $3 and d.message_id = $2), false)
returning letter
