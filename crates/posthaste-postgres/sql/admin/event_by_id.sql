-- One event by its id, in all of the log. The BRIN index on the id leaves few pages to read where ids grow with
-- time, and all of them where they do not: the caller sets a statement_timeout.
select /*event*/, octet_length(payload)::bigint as payload_bytes, xid::text as xid
  from posthaste.outbox where id = $1 limit 1
