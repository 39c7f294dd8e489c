-- The next letters of a job, locked, and why a replay would leave one alone: no route takes its topic, or no relay serves
-- its sink any more. $4: whether it is a replay. A letter that another act has in hand is waited for, and is gone then.
select l.letter, /*why*/ as why
  from posthaste.dead_letters l
 where l.letter > $1 and l.letter <= $2/*filter*/
 order by l.letter limit $3
   for update of l
