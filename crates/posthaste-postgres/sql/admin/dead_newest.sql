-- The same as dead_list.sql, newest first.
select /*event without payload*/, octet_length(payload)::bigint as payload_bytes, letter, sink,
       dead_at, attempts, replays, error_class, error_code, error, holds_key, fingerprint, history
  from posthaste.dead_letters
 where ($1::bigint is null or letter < $1)/*filter*/
 order by letter desc limit $2
