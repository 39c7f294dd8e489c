-- Whether a handler's session waits for somebody's lock, and, when its time is over, the end of its statement. So its
-- transaction can be rolled back at once, and lets go of the marks and keys that others would wait for until the
-- statement's own timeout. Only while the session is in our transaction: behind a pooler it is somebody else's once a
-- handler has committed.
with asked as materialized (
  select a.pid, cardinality(pg_blocking_pids(a.pid)) > 0 as waits
    from pg_stat_get_activity($1) a
   where a.backend_xid = ($2::text::bigint % 4294967296)::text::xid
)
select waits, case when $3 then pg_cancel_backend(pid) end from asked
