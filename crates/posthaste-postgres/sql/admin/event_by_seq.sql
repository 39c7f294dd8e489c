-- One event by its number.
select seq, slot, id, topic, key, headers, content_type, octet_length(payload)::bigint as payload_bytes, payload,
       deliver_at, appended_at, xid::text as xid
  from posthaste.outbox where seq = $1
