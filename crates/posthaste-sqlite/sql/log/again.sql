-- A deferred event that goes on waiting.
update posthaste_deferred
   set attempts = ?3, reason = ?4, destination = ?5, holds = holds or (?6 and key is not null), due_at = ?7,
       error_class = ?8, last_error = ?9, last_error_at = ?10, error_code = ?11, history = ?12
 where sink = ?1 and seq = ?2
