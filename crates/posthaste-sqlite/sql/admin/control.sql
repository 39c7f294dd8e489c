-- Sets one thing and leaves the other as it is. ?3: paused, null to leave it. ?4: whether ?5 is a new rate limit. What had
-- ended by itself (before ?8, now) does not come back with another thing. ?9: when it ends.
insert into posthaste_controls (kind, name, paused, rate_limit, actor, reason, set_at, until)
values (?1, ?2, coalesce(?3, 0), case when ?4 then ?5 end, ?6, ?7, ?8, ?9)
    on conflict (kind, name) do update
       set paused = coalesce(?3, paused and coalesce(until > ?8, 1)),
           rate_limit = case when ?4 then ?5 when coalesce(until > ?8, 1) then rate_limit end,
           actor = ?6, reason = ?7, set_at = ?8, until = ?9
