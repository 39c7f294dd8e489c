-- Events of the log wait to be delivered again, as copies with their own numbers: what waits of their keys goes
-- after them. Under lock_keys.sql. One that began to wait meanwhile goes on as it is.
insert into posthaste.deferred (sink, /*event*/, route, destination, reason, holds, replays, due_at)
select $1, /*o.event*/, '', '', 'replayed', o.key is not null and octet_length(o.key) <= 1024, 1, clock_timestamp()
  from posthaste.outbox o
 where o.seq = any ($2)
    on conflict (sink, seq) do nothing
returning sink, key, id
