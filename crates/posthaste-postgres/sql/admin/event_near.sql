-- One event by its id, among a bounded run of numbers.
select /*event*/, octet_length(payload)::bigint as payload_bytes, xid::text as xid
  from posthaste.outbox where seq > $1 and seq <= $2 and id = $3 order by seq limit 1
