-- Topics of the last letters of a cause, a few.
select distinct topic from (select topic from posthaste_dead_letters
 where fingerprint = ?1 and sink = ?2 order by letter desc limit 100) order by topic limit 5
