-- Events of one window of the log, without payload.
select /*event without payload*/, octet_length(payload)::bigint as payload_bytes
  from posthaste.outbox o
 where seq > $1 and seq <= $2/*filter*/
 order by seq limit $3
