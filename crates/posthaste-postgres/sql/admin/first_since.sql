-- The lowest number appended at or after an instant, from a number on that lies a little before it.
select seq from posthaste.outbox
 where seq >= $2 and appended_at >= timestamptz 'epoch' + $1 * interval '1 microsecond'
 order by seq limit 1
