-- What operators set for sinks, routes or the outbox, and who it was. What has ended by itself is not set any more.
select name, paused, rate_limit, settings, actor, reason, set_at, until from posthaste_controls
 where kind = ?1 and (until is null or until > ?2) order by name
