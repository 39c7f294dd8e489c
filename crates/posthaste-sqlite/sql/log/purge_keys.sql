-- Idempotency keys whose time is over.
delete from posthaste_idempotency_keys
 where (topic, key) in (select topic, key from posthaste_idempotency_keys where appended_at < ?1
                         order by appended_at limit ?2)
