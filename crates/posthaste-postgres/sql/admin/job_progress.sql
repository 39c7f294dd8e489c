-- How far a job is. The row is locked, and in the transaction of what was done. $5: what was left alone in this chunk, by
-- code; each is added to what was left before. Without a position it stays where it is: the owner lives.
update posthaste.jobs
   set position = coalesce($2, position), done = done + $3, left_alone = left_alone + $4,
       reasons = coalesce((select jsonb_object_agg(code, n)
                             from (select key as code, sum(value::bigint) as n
                                     from (select * from jsonb_each_text(reasons)
                                            union all select * from jsonb_each_text($5::text::jsonb)) b
                                    group by key) s), '{}'),
       state = $6, error = coalesce($7, error),
       lease_until = clock_timestamp() + make_interval(secs => $8),
       ended_at = case when $6 in ('done', 'failed') then clock_timestamp() end
 where job = $1
returning /*job*/
