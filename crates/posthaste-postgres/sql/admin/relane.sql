-- Other lanes instead of the old ones, which a statement before this one deleted, with the same filter and
-- standing.
insert into posthaste.lanes (sink, lane, slot_from, slot_to, filter, filter_n, epoch, retired_at)
select s.sink, n, 1024 * n / $1, 1024 * (n + 1) / $1 - 1, s.filter, 0, $2,
       s.retired_at::timestamptz
  from unnest($3::text[], $4::text[], $5::text[]) as s (sink, filter, retired_at)
 cross join generate_series(0, $1 - 1) as n
