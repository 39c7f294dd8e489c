-- The first number appended at or after an instant ($1, microseconds), as far as times grow with numbers; one behind
-- the last if there is none. By halving, one step into the index of each segment a turn, and in one statement: some
-- 25 round trips would take longer than the search.
with recursive halves as (
  select coalesce(min(seq), 0) as low, coalesce(max(seq), 0) + 1 as high from posthaste.outbox
  union all
  select case when coalesce(m.micros < $1, false) then m.seq + 1 else h.low end,
         case when coalesce(m.micros < $1, false) then h.high else h.middle end
    from (select low, high, low + (high - low) / 2 as middle from halves where low < high) h
    left join lateral (select seq, (extract(epoch from appended_at) * 1000000)::bigint as micros
                         from posthaste.outbox where seq >= h.middle order by seq limit 1) m on true
)
select low from halves where low >= high
