-- A sink's filter, brought up to date. When it changes, what the former one took is still read up to the number that
-- the log has reached. The last receipt is then the fence of fence_changed.sql; what was read before it counts as read
-- under another filter.
update posthaste.lanes l
   set retired_at = null, filter = $2,
       filter_before = case when l.filter = $2 then l.filter_before else l.filter end,
       filter_until = case when l.filter = $2 then l.filter_until
                      else coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0) end,
       filter_n = case when l.filter = $2 then l.filter_n
                  else (select max(n) - 1 from posthaste.receipts r where r.sink = l.sink and r.lane = l.lane) end
 where l.sink = $1
