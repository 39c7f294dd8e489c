-- Who did what, and why: in the transaction of the act, so that neither is there without the other.
insert into posthaste.audit (actor, action, reason, detail) values ($1, $2, $3, $4::text::jsonb)
