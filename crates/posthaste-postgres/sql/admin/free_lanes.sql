-- Lanes of these sinks have no owner any more, under a new epoch. Without an owner the next one starts
-- with a clean record.
with gone as (
  delete from posthaste.lease_tokens where sink = any ($1)
)
update posthaste.lanes set epoch = $2, owner = null, heart = null, expires_at = null where sink = any ($1)
