-- Writes down which event is in hand before it is published, under the present epoch only. Null: it came
-- back. Who is suspected of earlier deaths is not touched: another event's return proves nothing.
update posthaste.lanes set in_hand = $4
 where sink = $1 and lane = $2 and epoch = $3
returning 1
