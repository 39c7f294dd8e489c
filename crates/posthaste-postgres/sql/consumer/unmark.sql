-- A handler ended the transaction, and with it the marks of messages that did not run: those are taken back.
--native{
delete from posthaste.inbox where consumer = $1 and message_id = any ($2::text[])
--native}
--mapped: unmark
