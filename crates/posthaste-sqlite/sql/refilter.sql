-- A known sink's filter, brought up to date. When it changes, what the former one took is still read up to the number
-- that the log has reached. No row is changed for a new sink.
update posthaste_lanes
   set retired_at = null,
       filter_before = case when filter = ?2 then filter_before else filter end,
       filter_until = case when filter = ?2 then filter_until else ?3 end,
       filter = ?2
 where sink = ?1
