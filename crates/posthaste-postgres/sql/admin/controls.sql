-- What operators set for sinks, routes or the outbox, and who it was. What has ended by itself is not set any more.
select name, paused, rate_limit, left(settings::text, 200) as settings, actor, reason, set_at, until from posthaste.controls
 where kind = $1 and (until is null or until > clock_timestamp()) order by name
