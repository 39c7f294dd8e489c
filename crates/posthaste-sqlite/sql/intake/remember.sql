-- Insert first, never look first (F70). One transaction writes at a time: whoever meets a row here meets one that is
-- committed, or one of its own group, which commits or fails with it.
insert into posthaste_gateway_requests (tenant, topic, key, request_hash, ids, at) values (?1, ?2, ?3, ?4, ?5, ?6)
on conflict do nothing
