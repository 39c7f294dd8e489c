-- What an operator set for a consumer. What has ended by itself (before ?2, now) is not set any more.
select paused, rate_limit from posthaste_controls
 where kind = 'consumer' and name = ?1 and (until is null or until > ?2)
