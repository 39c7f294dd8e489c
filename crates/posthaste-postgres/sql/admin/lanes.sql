-- Each lane with its cursor and its live owner, of sinks in use or (with $1) retired ones. An owner is alive while its lease has not expired and its
-- heart, a session lock, still beats; behind a pooler there is no heart and expiry alone decides.
with hearts as materialized (
  select objid::bigint as heart from pg_locks
   where locktype = 'advisory' and classid = 1886351476 and objsubid = 2 and granted
     and database = (select oid from pg_database where datname = current_database())
)
select l.sink, l.lane, l.slot_from, l.filter, l.filter_before, l.filter_until, l.epoch, l.unclean,
       case when l.expires_at > clock_timestamp() and (l.heart is null or l.heart in (select heart from hearts))
            then l.owner end as owner,
       case when l.owner is not null
            then (extract(epoch from l.expires_at - clock_timestamp()) * 1000)::bigint end as lease_ms,
       coalesce(r.position, 0) as position,
       r.target is not null as catching_up,
       extract(epoch from clock_timestamp() - r.settled_at)::float8 as settled_seconds_ago
  from posthaste.lanes l
  left join lateral (select r.position, r.target, r.settled_at from posthaste.receipts r
                      where r.sink = l.sink and r.lane = l.lane order by r.n desc limit 1) r on true
 where (l.retired_at is not null) = $1
 order by l.sink, l.lane
