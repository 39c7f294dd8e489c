-- These are due now. Their rows are locked. One that a receiver has in hand at this moment may be asked for twice, and is
-- settled once (docs/consumers/http.md says so).
update posthaste.inbox_deferred set due_at = clock_timestamp() where consumer = $1 and seq = any ($2::bigint[])
