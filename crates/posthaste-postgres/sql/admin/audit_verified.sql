-- The same of somebody whom a token named, also of what was denied them.
insert into posthaste.audit (actor, action, reason, detail, trace_id, verified, outcome)
values ($1, $2, $3, $4::text::jsonb, $5, true, $6)
