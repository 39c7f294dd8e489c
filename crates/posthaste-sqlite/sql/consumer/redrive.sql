-- Somebody sent a dead letter back, perhaps mended: the copy's bytes are those to handle.
update posthaste_inbox_deferred
   set topic = ?2, partition = ?3, position = ?4, address = ?5, key = ?6, order_id = ?7, headers = ?8, payload = ?9,
       published_at = ?10, due_at = case when ?7 is null then ?11 else 9223372036854775807 end
 where seq = ?1
