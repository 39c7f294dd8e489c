-- Insert first, never look first (F70). Two transactions with one id: the second waits here for the first to
-- end. If that one committed, there is a conflict and no row comes back; if it rolled back, the row is ours.
-- Under READ COMMITTED that is all. Under REPEATABLE READ and SERIALIZABLE a conflict with a row that this
-- snapshot cannot see is 40001: the handler's transaction has to be run again, and is a duplicate then.
insert into posthaste.inbox (consumer, message_id, topic, partition, position)
values ($1, $2, $3, $4, $5)
on conflict (consumer, message_id) do nothing
returning true
