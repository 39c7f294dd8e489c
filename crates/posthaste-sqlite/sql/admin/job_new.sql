-- A job that somebody asks for. What makes it one too many was looked at in the same transaction.
insert into posthaste_jobs (kind, consumer, plan, upto, rate_per_s, total, actor, verified, reason, trace_id,
   idempotency_key, owner, state, epoch, lease_until, created_at, started_at)
 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
