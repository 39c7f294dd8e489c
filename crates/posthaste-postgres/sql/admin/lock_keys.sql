-- Admin acts and settlements both decide who is the first of a key, by looking at rows that the other may
-- just be changing. Acts take this lock alone; a settlement that holds or frees keys takes it shared,
-- before it looks. Of the transaction, so that it works behind a pooler.
select pg_advisory_xact_lock(1886351477, hashtext($1))
