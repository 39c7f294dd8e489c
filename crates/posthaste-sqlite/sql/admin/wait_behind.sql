-- Events of a key that are not the first any more wait: an event that was replayed went before them.
update posthaste_deferred
   set due_at = ?3
 where sink = ?1 and key = ?2 and holds and due_at < ?3
   and (exists (select 1 from posthaste_deferred e
                 where e.sink = ?1 and e.key = ?2 and e.holds and e.seq < posthaste_deferred.seq)
     or exists (select 1 from posthaste_dead_letters l
                 where l.sink = ?1 and l.key = ?2 and l.holds_key and l.seq < posthaste_deferred.seq))
