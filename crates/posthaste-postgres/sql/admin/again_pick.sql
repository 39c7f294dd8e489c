-- Events of one window of the log that a replay means, and whether each may go: one that waits or is dead already
-- is left alone, there are acts of their own for it. $4 is the sink.
select /*event without payload*/, octet_length(payload)::bigint as payload_bytes,
       not exists (select from posthaste.deferred d where d.sink = $4 and d.seq = o.seq)
         and not exists (select from posthaste.dead_letters d where d.sink = $4 and d.seq = o.seq) as goes
  from posthaste.outbox o
 where seq > $1 and seq <= $2/*condition*//*filter*/
 order by seq limit $3
