-- Processes of this consumer that have not been heard of for a day.
delete from posthaste.processes where role in ('consumer', 'member') and name = $1 and seen_at < now() - interval '1 day'
