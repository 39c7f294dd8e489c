-- How many letters match.
select count(*) from posthaste.inbox_dead_letters where consumer = $1 /*filter*/
