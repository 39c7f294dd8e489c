-- The newest act that took lanes of a sink from whoever held them under an epoch. Each such act draws an epoch above all
-- that were, and writes it into its line of the audit in the same transaction: so a line with a higher one is what fenced
-- the lease. Bounded: only the end of the audit is looked at, however long it is.
select action, actor, reason from (select * from posthaste_audit order by id desc limit 1000)
 where action in ('rewind', 'repair', 'lanes')
   and case when json_valid(detail)
            then (action <> 'rewind' or json_extract(detail, '$.sink') = ?1) and json_extract(detail, '$.epoch') > ?2 end
 order by id desc limit 1
