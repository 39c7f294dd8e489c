-- Letters leave for good. The audit's line in the same transaction is what remains of them.
delete from posthaste.dead_letters where letter = any ($1) returning sink, key, id, topic
