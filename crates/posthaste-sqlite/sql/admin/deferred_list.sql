-- A page of deferred events by sink and number, by keyset.
select sink, seq, id, topic, key, route, destination, reason, due_at, attempts, replays, error_code, last_error,
       last_error_at, history, appended_at, deferred_at
  from posthaste_deferred where /*condition*/ order by sink, seq limit /*limit*/
