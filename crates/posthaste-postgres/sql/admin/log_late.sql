-- Events that a former look passed by number and could not see yet: their transactions were running. Bounded by
-- numbers: whoever only looks on does not pay for marks.
select /*event without payload*/, octet_length(payload)::bigint as payload_bytes
  from posthaste.outbox o
 where seq > $1 and seq <= $2 and not pg_visible_in_snapshot(xid, $3::text::pg_snapshot)/*filter*/
 order by seq
