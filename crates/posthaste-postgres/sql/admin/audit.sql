-- Who did what, and why: in the transaction of the act, so that neither is there without the other. That somebody is
-- verified is said by an administrator alone: the others may not write that column.
insert into posthaste.audit (actor, action, reason, detail, trace_id) values ($1, $2, $3, $4::text::jsonb, $5)
