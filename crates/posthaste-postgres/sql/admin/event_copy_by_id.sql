-- A copy of an event that the log does not hold any more. Dead letters have an index on the id. The deferred have
-- none; they are the exceptions, and the caller sets a statement_timeout.
select seq, slot, id, topic, key, headers, content_type, octet_length(payload)::bigint as payload_bytes, payload,
       deliver_at, appended_at, null::text as xid
  from (select seq, slot, id, topic, key, headers, content_type, payload, deliver_at, appended_at
          from posthaste.dead_letters where id = $1
        union all
        select seq, slot, id, topic, key, headers, content_type, payload, deliver_at, appended_at
          from posthaste.deferred where id = $1) c
 limit 1
