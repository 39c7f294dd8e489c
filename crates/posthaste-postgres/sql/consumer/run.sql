-- T3, the look under the keys' locks: which of them are still first and due, each followed by those that wait
-- behind it. A run ends before one whose own time has not come, and at a dead letter that holds the key:
-- nothing of a key is passed over. Bounded in messages, and in bytes by the running sum.
with heads as materialized (
  select d.seq, d.topic, d.order_id, d.holds, h.rank
    from unnest($2::bigint[]) with ordinality as h (seq, rank)
    join posthaste.inbox_deferred d on d.seq = h.seq
   where d.consumer = $1 and d.due_at <= clock_timestamp()
     and (d.order_id is null or not exists (
           select from posthaste.inbox_deferred e
            where e.consumer = $1 and e.topic = d.topic and e.order_id = d.order_id and e.holds = d.holds
              and e.seq < d.seq))
     and (d.order_id is null or not exists (
           select from posthaste.inbox_dead_letters l
            where l.consumer = $1 and l.topic = d.topic and l.order_id = d.order_id and l.holds_key and l.seq < d.seq))
), run as (
  select h.rank, h.seq from heads h
  union all
  select h.rank, f.seq
    from heads h
   cross join lateral (
     select f.seq, bool_and((f.due_at = 'infinity' or f.due_at <= clock_timestamp()) and not exists (
                     select from posthaste.inbox_dead_letters l
                      where l.consumer = $1 and l.topic = h.topic and l.order_id = h.order_id and l.holds_key
                        and l.seq < f.seq)) over (order by f.seq) as goes
       from (select f.seq, f.due_at from posthaste.inbox_deferred f
              where f.consumer = $1 and f.topic = h.topic and f.order_id = h.order_id and f.holds = h.holds
                and f.seq > h.seq
              order by f.seq limit $3) f) f
   where $3 > 1 and f.goes
), picked as (
  select r.seq, row_number() over w as place,
         sum(coalesce(octet_length(d.payload), 0)) over w - coalesce(octet_length(d.payload), 0) as before
    from run r join posthaste.inbox_deferred d on d.seq = r.seq
  window w as (order by r.rank, r.seq)
)
select d.seq, d.message_id, d.topic, d.partition, d.position, d.address, d.key, d.order_id, d.headers::text as headers,
       d.payload, d.published_at, d.attempts, d.history::text as history, pg_current_xact_id()::text as xid,
       clock_timestamp() as now
  from picked p join posthaste.inbox_deferred d on d.seq = p.seq
 where p.before < $4 and p.place <= $3
 order by p.place
