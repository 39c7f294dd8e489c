-- A relay says goodbye, and what it said about itself goes with it. Others hear that lanes became free.
with gone as (delete from posthaste.processes where process = $1 and role = 'relay')
delete from posthaste.relays where relay = $1 returning pg_notify($2, 'lanes')
