-- The first row up to a lane's position that is not proven to be handled, and the snapshot of this very
-- look: a row that commits later is in neither. Proven is a row that
--   * was visible in the cursor's snapshot, hence handled when that was written,
--   * cannot be from here (its xid was not given out yet; 3 is what a former repair wrote), so that
--     snapshot and xid are of one kind,
--   * was appended before the cursor's state was written: numbers that were drawn again after a sequence
--     went back are younger.
select pg_current_snapshot()::text as now,
       (select seq from posthaste.outbox
         where seq <= $1
           and not ((xid = '3'::xid8 or xid::text::bigint >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
                    and pg_visible_in_snapshot(xid, $2::text::pg_snapshot)
                    and appended_at <= (select min(r.settled_at) from posthaste.receipts r
                                         where r.sink = $3 and r.lane = $4 and r.position = $1
                                           and r.snapshot::text = $2))/*condition*/
         order by seq limit 1) as unproven
