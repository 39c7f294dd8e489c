-- An event into the log, in the caller's transaction. The number is drawn under the write lock, and whoever holds that
-- lock is the only one who writes: numbers become visible in the order they were drawn, and a reader that remembers the
-- last one skips nothing. (On PostgreSQL that is false, and most of the cursor is about it.)
insert into posthaste_outbox (appended_at, /*names*/) values (?/*values*/)
