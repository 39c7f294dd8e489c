-- T3 after deaths: the attempt is counted before the handler runs, for a process that dies counts nothing
-- (F21).
update posthaste.inbox_deferred set attempts = attempts + 1
 where consumer = $1 and seq = $2 and attempts = $3
returning seq
