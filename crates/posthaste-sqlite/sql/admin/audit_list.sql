-- A page of the audit, newest first, by keyset.
select id, at, actor, coalesce(verified, 0) as verified, action, reason, coalesce(outcome, 'done') as outcome, trace_id, detail
  from posthaste_audit where /*condition*/ order by id desc limit /*limit*/
