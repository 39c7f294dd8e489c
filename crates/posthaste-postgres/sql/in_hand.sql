-- Writes down which event is in hand before it is published, under the present epoch only. Null: past
-- the dangerous place, forget all counts.
update posthaste.lanes
   set in_hand = $4,
       in_hand_deaths = case when in_hand = $4 then in_hand_deaths else 0 end,
       unclean = case when $4::bigint is null then 0 else unclean end
 where sink = $1 and lane = $2 and epoch = $3
returning 1
