-- Writes a job down. Nothing comes back if its idempotency key is there: another transaction with the same key is
-- waited for, so two cannot both be first. Also if too many jobs are open; two that are counted at the same moment may
-- make it one more, which harms nobody.
insert into posthaste.jobs (kind, consumer, plan, upto, rate_per_s, total, actor, verified, reason, trace_id,
                            idempotency_key, owner, state, epoch, lease_until, started_at)
select $1, $2, $3::text::jsonb, $4, $5, $6, $7, $8, $9, $10, $11, $12,
       case when $12::text is null then 'queued' else 'running' end, case when $12::text is null then 0 else 1 end,
       case when $12::text is not null then clock_timestamp() + make_interval(secs => $13) end,
       case when $12::text is not null then clock_timestamp() end
 where (select count(*) from (select from posthaste.jobs where state in ('queued', 'running', 'paused') limit $14) o) < $14
    on conflict (idempotency_key) do nothing
returning /*job*/
