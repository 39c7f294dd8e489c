-- Deferred events that were delivered leave. Their keys come back: the next of each may go.
delete from posthaste.deferred where sink = $1 and seq = any ($2) returning key
