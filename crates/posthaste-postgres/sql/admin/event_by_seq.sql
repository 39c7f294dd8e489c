-- One event by its number.
select /*event*/, octet_length(payload)::bigint as payload_bytes, xid::text as xid
  from posthaste.outbox where seq = $1
