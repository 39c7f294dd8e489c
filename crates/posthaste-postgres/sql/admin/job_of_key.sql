-- The job of an idempotency key, and whether it is about the same.
select /*job*/, plan = $2::text::jsonb as same from posthaste.jobs where idempotency_key = $1
