-- The first row from a number on, and when it was appended. By the index of each segment: one step of a
-- search.
select seq, (extract(epoch from appended_at) * 1000000)::bigint as micros
  from posthaste.outbox where seq >= $1 order by seq limit 1
