-- How many events a lane that goes back sends again.
select count(*) from posthaste.outbox where seq > $1 and seq <= $2/*condition*/
