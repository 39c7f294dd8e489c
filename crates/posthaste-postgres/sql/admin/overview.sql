-- The outbox at a glance. Single rows and short lists; nothing here grows with backlog or history. The
-- sequence is read after the snapshot was taken, so it is never below a number that the snapshot shows.
select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now,
       (select coalesce(max(version), 0) from posthaste.migrations) as version,
       coalesce(pg_sequence_last_value('posthaste.outbox_seq'::regclass), 0) as last_value,
       array(select r.relay from posthaste.relays r
              where r.expires_at > clock_timestamp()
                and (r.heart is null or exists (
                      select from pg_locks p
                       where p.locktype = 'advisory' and p.classid = 1886351476 and p.objid::bigint = r.heart
                         and p.objsubid = 2 and p.granted
                         and p.database = (select oid from pg_database where datname = current_database())))
              order by r.relay) as relays,
       exists (select from posthaste.jobs j
                where j.state in ('queued', 'running', 'paused')
                  and (j.state = 'queued' or (j.state = 'running' and j.lease_until < clock_timestamp()))) as jobs_wait
