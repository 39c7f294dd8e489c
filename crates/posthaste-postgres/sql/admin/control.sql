-- Sets one thing and leaves the other as it is. Two operators at once: the row's lock puts them in order. What had ended
-- by itself does not come back with another thing. $8: when it ends, in microseconds.
insert into posthaste.controls as c (kind, name, paused, rate_limit, actor, reason, set_at, until)
values ($1, $2, coalesce($3, false), case when $4 then $5::float8 end, $6, $7, clock_timestamp(),
        timestamptz 'epoch' + $8 * interval '1 microsecond')
    on conflict (kind, name) do update
       set paused = coalesce($3, c.paused and (c.until is null or c.until > clock_timestamp())),
           rate_limit = case when $4 then $5::float8
                             when c.until is null or c.until > clock_timestamp() then c.rate_limit end,
           actor = $6, reason = $7, set_at = clock_timestamp(), until = excluded.until
