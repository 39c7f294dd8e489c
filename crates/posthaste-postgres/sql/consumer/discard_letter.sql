-- A letter leaves for good by somebody's order; the line in the audit is theirs. Its mark stays: a copy that comes later is
-- not handled.
delete from posthaste.inbox_dead_letters where consumer = $1 and letter = $2 returning message_id
