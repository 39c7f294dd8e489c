select request_hash, ids from posthaste_gateway_requests where tenant = ?1 and topic = ?2 and key = ?3
