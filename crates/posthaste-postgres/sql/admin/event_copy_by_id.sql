-- A copy of an event that the log does not hold any more. Dead letters have an index on the id. The deferred have
-- none; they are the exceptions, and the caller sets a statement_timeout.
select /*event*/, octet_length(payload)::bigint as payload_bytes, null::text as xid
  from (select /*event*/ from posthaste.dead_letters where id = $1
        union all
        select /*event*/ from posthaste.deferred where id = $1) c
 limit 1
