-- The next events of a condition are due now; not what waits for its own time.
update posthaste_deferred set due_at = /*now*/ where (sink, seq) in (
  select sink, seq from posthaste_deferred
   where /*condition*/ and reason <> 'scheduled' order by sink, seq limit /*limit*/)
returning id, topic
