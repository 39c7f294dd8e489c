-- Nobody takes, renews or settles a lane, or births one, while cursors are written by hand. After the
-- ring's row lock, in the same order as everybody else: ring, lanes, receipts. Reading goes on.
lock table posthaste.lanes, posthaste.receipts in exclusive mode
