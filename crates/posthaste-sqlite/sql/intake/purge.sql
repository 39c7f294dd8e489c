-- A bounded number of the oldest: everybody else waits for the write lock meanwhile.
delete from posthaste_gateway_requests where (tenant, topic, key) in
  (select tenant, topic, key from posthaste_gateway_requests where at < ?1 order by at limit ?2)
