-- The highest number that anything here speaks of.
select max((select coalesce(max(seq), 0) from posthaste_outbox),
           (select coalesce(max(position), 0) from posthaste_receipts),
           (select coalesce(max(seq), 0) from posthaste_deferred),
           (select coalesce(max(seq), 0) from posthaste_dead_letters))
