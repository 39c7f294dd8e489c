-- What a member knows of a partition. Of two positions the higher one stays, for both are true. An operator's seek
-- (`seeks`) ends what was known before it. What is in hand, and that the partition is given back, only its owner says:
-- a zombie must not hide a death. It gives back whatever was sought meanwhile.
update posthaste_inbox_partitions
   set position_time = case when seeks = ?11 and ?4 >= coalesce(position, ?4) then ?5 else position_time end,
       log_id = case when seeks = ?11 then coalesce(?6, log_id) else log_id end,
       position = case when seeks = ?11 then max(coalesce(position, ?4), coalesce(?4, position)) else position end,
       saved_at = ?7,
       in_hand = case when owner = ?8 then ?9 else in_hand end,
       clean = clean or (?10 and owner is ?8)
 where consumer = ?1 and topic = ?2 and partition = ?3 and (seeks = ?11 or ?10 and owner is ?8)
