-- One event's dead letters, one for each sink, with payload.
select /*event*/, octet_length(payload)::bigint as payload_bytes, letter, sink,
       dead_at, attempts, replays, error_class, error_code, error, holds_key, fingerprint, history
  from posthaste.dead_letters where id = $1 order by letter
