-- A handler's time is over: whether its session waits for somebody's lock, and then the end of its statement. So its
-- transaction can be rolled back at once, and lets go of the marks and keys that others would wait for until the
-- statement's own timeout. Only while the session is in our transaction: behind a pooler it is somebody else's once a
-- handler has committed.
with asked as materialized (
  select a.pid, cardinality(pg_blocking_pids(a.pid)) > 0 as waits
    from pg_stat_get_activity($1) a
   where a.backend_xid = ($2::text::bigint % 4294967296)::text::xid
)
select waits, pg_cancel_backend(pid) from asked
