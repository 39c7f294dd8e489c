-- T3: deferred messages that are done. Of a repeat the mark stays as it is.
with gone as (
  delete from posthaste.inbox_deferred where consumer = $1 and seq = any ($2::bigint[]) returning message_id, repeat
)
--native{
update posthaste.inbox i set outcome = 'd', xid = pg_current_xact_id(), processed_at = now()
  from gone g
 where i.consumer = $1 and i.message_id = g.message_id and not g.repeat
returning i.message_id
--native}
--mapped: done
