-- Takes a partition that nobody holds. Of two that try at once the second waits for the first one's row, and finds
-- it held. The owner is not touched: that is who handles, and it is how a death is told from a clean end.
insert into posthaste.inbox_partitions as p (consumer, topic, partition, epoch, expires_at)
values ($1, $2, $3, 1, clock_timestamp() + interval '1 microsecond' * $4::bigint)
    on conflict (consumer, topic, partition) do update
   set epoch = p.epoch + 1, expires_at = excluded.expires_at
 where p.expires_at is null or p.expires_at <= clock_timestamp()
returning p.epoch
