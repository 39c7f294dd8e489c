-- The lowest number appended at or after an instant. Walks the log from its beginning to there: numbers
-- follow time only roughly (clocks are set, transactions wait between number and row), and an event that
-- is left out would be missed.
select seq from posthaste.outbox
 where appended_at >= timestamptz 'epoch' + $1 * interval '1 microsecond'
 order by seq limit 1
