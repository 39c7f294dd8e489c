-- What operators set for sinks, routes and the outbox. What has ended by itself is not set any more.
select kind, name, paused, rate_limit, settings, actor, reason, set_at, until from posthaste_controls
 where kind in ('sink', 'route', 'outbox') and (until is null or until > ?1) order by kind, name
