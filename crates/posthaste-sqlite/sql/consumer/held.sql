-- Whether something of a key is in the way of what comes later.
select exists (select 1 from posthaste_inbox_deferred
                where consumer = ?1 and topic = ?2 and order_id = ?3 and holds = 1)
    or exists (select 1 from posthaste_inbox_dead_letters
                where consumer = ?1 and topic = ?2 and order_id = ?3 and holds_key)
