-- Heartbeat: renews what is ours, looks around. One statement, on the heart's own connection.
-- A lease is renewed only by its owner and epoch; one that expired but that nobody took is simply
-- renewed, because the epoch is what fences. Rows are updated only when a third of the lease is gone, so
-- that a held snapshot does not grow a chain of versions a second.
-- Whatever was written into controls by hand must not end the heartbeat: what is no finite number is left out, and so
-- is an instant that nobody can mean; a setting is text, of which the relay reads what it can.
-- The SELECT sees the state before the UPDATEs of the same statement: owner and epoch are not changed by
-- them, and freshness of expiry does not matter to the reader.
with hearts as materialized (
  select objid::bigint as heart from pg_locks
   where locktype = 'advisory' and classid = 1886351476 and objsubid = 2 and granted
     and database = (select oid from pg_database where datname = current_database())
), renewed as (
  update posthaste.lanes l
     set expires_at = clock_timestamp() + make_interval(secs => $2), heart = $3
    from unnest($4, $5, $6) as h (sink, lane, epoch)
   where l.sink = h.sink and l.lane = h.lane and l.epoch = h.epoch and l.owner = $1
     and (l.expires_at < clock_timestamp() + make_interval(secs => $2 * 0.67) or l.heart is distinct from $3)
), present as (
  update posthaste.relays
     set expires_at = clock_timestamp() + make_interval(secs => $2), heart = $3
   where relay = $1
     and (expires_at < clock_timestamp() + make_interval(secs => $2 * 0.67) or heart is distinct from $3)
)
select json_build_object(
  'now', (extract(epoch from clock_timestamp()) * 1000000)::bigint,
  'known', exists (select from posthaste.relays where relay = $1),
  'relays', (select count(*) from posthaste.relays r
              where r.expires_at > clock_timestamp()
                and (r.heart is null or r.heart in (select heart from hearts))),
  'lanes', (select coalesce(json_agg(json_build_object(
              'sink', l.sink, 'lane', l.lane, 'epoch', l.epoch, 'owner', l.owner,
              'free', l.owner is null or l.expires_at <= clock_timestamp()
                      or (l.heart is not null and l.heart not in (select heart from hearts))) order by l.sink, l.lane), '[]')
              from posthaste.lanes l where l.sink = any ($7)),
  'controls', (select coalesce(json_agg(json_build_object(
              'kind', c.kind, 'name', c.name, 'paused', c.paused,
              'rate', case when c.rate_limit > '-infinity' and c.rate_limit < 'infinity' then c.rate_limit end,
              'settings', left(c.settings::text, 200),
              'actor', c.actor, 'reason', c.reason,
              'set_at', case when c.set_at between '0001-01-01Z' and '9999-12-31Z'
                             then (extract(epoch from c.set_at) * 1000000)::bigint end,
              'until', case when c.until < '9999-12-31Z' then (extract(epoch from c.until) * 1000000)::bigint end)
              order by c.kind, c.name), '[]')
              from posthaste.controls c
              where c.kind in ('sink', 'route', 'outbox') and (c.until is null or c.until > clock_timestamp())),
  'routes', (select value from posthaste.state where name = 'routes'),
  'closing', (select segment from posthaste.segments where closing limit 1)
)::text
