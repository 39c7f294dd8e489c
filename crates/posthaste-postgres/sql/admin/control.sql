-- Sets one thing and leaves the other as it is. Two operators at once: the row's lock puts them in order.
insert into posthaste.controls as c (kind, name, paused, rate_limit)
values ($1, $2, coalesce($3, false), case when $4 then $5::float8 end)
    on conflict (kind, name) do update
       set paused = coalesce($3, c.paused), rate_limit = case when $4 then $5::float8 else c.rate_limit end
