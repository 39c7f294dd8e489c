-- The lock of a key, for everything that changes what is deferred or dead of it. A row goes behind a hold
-- under it, after a look that saw the hold; a hold leaves under it, and then promotes what a later statement
-- sees. So whoever comes second sees the other.
select pg_advisory_xact_lock(1347375956, hashtext($1::text || chr(31) || $2::text || chr(31) || $3::uuid::text))
