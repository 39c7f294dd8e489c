-- What a job would do with letters of a consumer, and until when they died: what dies from now on is not part of it.
select count(*) as count, max(letter::text collate "C") as last, clock_timestamp() as now
  from posthaste.inbox_dead_letters where consumer = $1/*filter*/
