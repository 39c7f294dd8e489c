-- Events of one window of the log, without payload.
select seq, slot, id, topic, key, headers, content_type, octet_length(payload)::bigint as payload_bytes, null::bytea as payload,
       deliver_at, appended_at
  from posthaste.outbox o
 where seq > $1 and seq <= $2/*filter*/
 order by seq limit $3
