-- The mark of a message that was sent back is that of the copy from now on.
update posthaste_inbox set topic = ?3, partition = ?4, position = ?5 where consumer = ?1 and message_id = ?2
