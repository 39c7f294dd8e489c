-- A page of dead letters, oldest first, by keyset: the cost of a page does not depend on its place. The
-- payload stays where it is.
select /*event without payload*/, octet_length(payload)::bigint as payload_bytes, letter, sink,
       dead_at, attempts, replays, error_class, error_code, error, holds_key, fingerprint, history
  from posthaste.dead_letters l
 where letter > $1/*filter*/
 order by letter limit $2
