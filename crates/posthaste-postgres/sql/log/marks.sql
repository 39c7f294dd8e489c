-- Marks to start with: the newest of all cursors (a mark is true for every one), and the newest below
-- the oldest transaction that the cursor remembers as running.
(select xid::text::bigint, mark from posthaste.receipts order by xid desc limit 32)
union all
(select xid::text::bigint, mark from posthaste.receipts where xid < $1::text::xid8 order by xid desc limit 1)
