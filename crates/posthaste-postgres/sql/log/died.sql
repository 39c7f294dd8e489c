-- Deferred events that die: out of one table, into the other, in one statement. Of the same shape as
-- bury.sql. Their keys come back: the next of each may go.
with gone as (
  delete from posthaste.deferred where sink = $1 and seq = any ($2) returning *
), kept as (
  insert into posthaste.dead_letters (sink, /*event*/, route, holds_key, attempts, replays, error_class, error_code, error,
                                      fingerprint, history)
  select g.sink, /*g.event*/, g.route, d.holds and g.key is not null, g.earlier_attempts + d.attempts, g.replays,
         d.class, d.code, d.error, d.fingerprint, posthaste.attempts(g.history, d.attempt)
    from gone g
    join unnest($2::bigint[], $3::text[], $4::boolean[], $5::int[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::text[])
         as d (seq, route, holds, attempts, class, code, error, fingerprint, attempt) on d.seq = g.seq
      on conflict (sink, seq) do nothing
)
select key from gone
