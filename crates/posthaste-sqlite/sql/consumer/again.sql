-- A deferred message failed, and waits once more.
update posthaste_inbox_deferred
   set attempts = ?2, due_at = ?3, history = ?4, error_class = ?5, error_code = ?6, last_error = ?7, last_error_at = ?8
 where seq = ?1
