-- The settlement's receipt. Its primary key is the fence (see take.sql); the token is gone after a crash
-- of the server, and with it every position that lived in a relay's memory only.
insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot, target, late_position,
                                segments, counts, sums, delivered)
select $1, $2, $3, $4, 'settle', $5, $6, $7::text::pg_snapshot, $8::text::pg_snapshot, $9, $10, $11, $12, $13
 where exists (select from posthaste.lease_tokens t where t.sink = $1 and t.lane = $2 and t.epoch = $4)
returning xid::text
