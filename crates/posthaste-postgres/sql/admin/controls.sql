-- What operators set for sinks.
select name, paused, rate_limit from posthaste.controls where kind = 'sink'
