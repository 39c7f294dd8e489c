-- Who did what, and why: in the transaction of the act. Or who was denied what.
insert into posthaste_audit (at, actor, action, reason, detail, trace_id, verified, outcome)
 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
