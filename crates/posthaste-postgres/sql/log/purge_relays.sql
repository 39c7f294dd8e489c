-- Relays that are gone for long, and what they said about themselves. A relay that is slow renews its row, and its report
-- stays with it.
with reports as (
  delete from posthaste.processes p
   where p.role = 'relay' and p.seen_at < clock_timestamp() - interval '1 hour'
     and not exists (select from posthaste.relays r where r.relay = p.process and r.expires_at > clock_timestamp())
)
delete from posthaste.relays where expires_at < clock_timestamp() - interval '1 hour' returning 1
