-- A known sink's filter, brought up to date. When it changes, what the former one took is still read up to the number
-- that the log has reached. And the epoch grows: a relay that froze may still read by the former filter, and would move
-- past what now belongs to this sink. No row is changed for a new sink.
update posthaste_lanes
   set retired_at = null,
       epoch = case when filter = ?2 then epoch else epoch + 1 end,
       filter_before = case when filter = ?2 then filter_before else filter end,
       filter_until = case when filter = ?2 then filter_until else ?3 end,
       filter = ?2
 where sink = ?1
