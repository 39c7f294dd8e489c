-- What is set already, and the clock that ends are judged by. Whoever sets the other thing at the same moment waits for
-- the lock that stands before this.
select clock_timestamp() as now, paused, rate_limit, until
  from (values (1)) as one
  left join lateral (select * from posthaste.controls where kind = $1 and name = $2
                        and (until is null or until > clock_timestamp())) c on true
