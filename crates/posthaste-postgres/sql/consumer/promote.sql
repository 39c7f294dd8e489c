-- The first of each queue of these keys comes due, unless a dead letter before it holds the key. Runs after
-- all changes, under the keys' locks. One step into an index for each queue, whatever waits besides.
with first as materialized (
  select f.seq, k.topic, k.order_id
    from unnest($2::text[], $3::uuid[]) as k (topic, order_id)
   cross join (values (true), (false)) as q (holds)
   cross join lateral (select d.seq from posthaste.inbox_deferred d
                        where d.consumer = $1 and d.topic = k.topic and d.order_id = k.order_id and d.holds = q.holds
                        order by d.seq limit 1) f
)
update posthaste.inbox_deferred d
   set due_at = clock_timestamp()
  from first
 where d.seq = first.seq and not isfinite(d.due_at)
   and not exists (select from posthaste.inbox_dead_letters l
                    where l.consumer = $1 and l.topic = first.topic and l.order_id = first.order_id and l.holds_key
                      and l.seq < d.seq)
