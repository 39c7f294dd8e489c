-- Dead letters of a sink, counted up to a bound.
select count(*) as count from (select from posthaste.dead_letters where sink = $1 limit $2) l
