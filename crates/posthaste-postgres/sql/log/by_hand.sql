-- The newest act that took lanes of a sink from whoever held them under an epoch. Each such act draws an epoch above all
-- that were, and writes it into its line of the audit in the same transaction: so a line with a higher one is what fenced
-- the lease. Bounded: only the end of the audit is looked at, however long it is.
select action, actor, reason
  from (select * from posthaste.audit order by id desc limit 1000) a
 where action in ('rewind', 'repair', 'lanes')
   and (action = 'lanes' or detail ->> 'sink' = $1 or jsonb_exists(detail -> 'sent_again', $1))
   and case when jsonb_typeof(detail -> 'epoch') = 'number' then (detail ->> 'epoch')::numeric > $2 end
 order by id desc limit 1
