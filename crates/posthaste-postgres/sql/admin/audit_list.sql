-- A page of the audit, newest first, by keyset.
select id, at, actor, coalesce(verified, false) as verified, action, reason, coalesce(outcome, 'done') as outcome, trace_id, detail
  from posthaste.audit
 where ($1::bigint is null or id < $1)/*filter*/
 order by id desc limit $2
