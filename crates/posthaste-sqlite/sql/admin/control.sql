-- Sets one thing and leaves the other as it is. ?3: paused, null to leave it. ?4: whether ?5 is a new rate limit.
insert into posthaste_controls (kind, name, paused, rate_limit)
values (?1, ?2, coalesce(?3, 0), case when ?4 then ?5 end)
    on conflict (kind, name) do update
       set paused = coalesce(?3, paused), rate_limit = case when ?4 then ?5 else rate_limit end
