-- Takes a partition that nobody holds. Of two that try at once the second waits for the first one's row, and finds
-- it held. The owner is not touched: that is who handles, and it is how a death is told from a clean end. Epochs grow
-- by chance: a database that went back in time would give a second owner the epoch that the first one still renews.
insert into posthaste.inbox_partitions as p (consumer, topic, partition, epoch, expires_at)
values ($1, $2, $3, 1 + floor(random() * 1000)::bigint, clock_timestamp() + interval '1 microsecond' * $4::bigint)
    on conflict (consumer, topic, partition) do update
   set epoch = p.epoch + 1 + floor(random() * 1000)::bigint, expires_at = excluded.expires_at
 where p.expires_at is null or p.expires_at <= clock_timestamp()
returning p.epoch
