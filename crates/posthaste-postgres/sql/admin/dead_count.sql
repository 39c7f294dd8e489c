-- How many letters a filter means: what a dry run promises.
select count(*) from posthaste.dead_letters where true/*filter*/
