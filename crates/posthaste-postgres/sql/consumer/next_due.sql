-- When the next deferred message is due. Those behind others have no time, or wait for more than theirs: a
-- letter that was replayed went before them.
select pg_postmaster_start_time() as witness,
       (select extract(epoch from d.due_at - clock_timestamp())::float8 from posthaste.inbox_deferred d
         where d.consumer = $1 and d.due_at < 'infinity'
           and (d.order_id is null or not exists (
                 select from posthaste.inbox_deferred e
                  where e.consumer = $1 and e.topic = d.topic and e.order_id = d.order_id and e.holds = d.holds
                    and e.seq < d.seq))
           and (d.order_id is null or not exists (
                 select from posthaste.inbox_dead_letters l
                  where l.consumer = $1 and l.topic = d.topic and l.order_id = d.order_id and l.holds_key
                    and l.seq < d.seq))
         order by d.due_at limit 1) as seconds
