-- Locks a lane's row and says whether it may be taken: it has no live owner, or the asker itself owned
-- it and lost it in a crash of the server. Row lock: two takers go one after the other, and
-- the second sees the first one's owner and epoch. The token goes with the server, not with the owner.
select l.epoch, l.owner, l.slot_from, l.slot_to, l.filter, l.filter_before, l.filter_until, l.unclean, l.unclean_position, l.in_hand, l.suspect,
       l.suspect_deaths,
       l.owner is null or l.owner = $3 or l.expires_at <= clock_timestamp()
         or (l.heart is not null and not exists (
               select from pg_locks p
                where p.locktype = 'advisory' and p.classid = 1886351476 and p.objid::bigint = l.heart
                  and p.objsubid = 2 and p.granted
                  and p.database = (select oid from pg_database where datname = current_database()))) as free,
       exists (select from posthaste.lease_tokens t
                where t.sink = l.sink and t.lane = l.lane and t.epoch = l.epoch) as has_token,
       (select count(*) from posthaste.lanes a where a.sink = l.sink) as lanes_of_sink
  from posthaste.lanes l
 where l.sink = $1 and l.lane = $2 and l.retired_at is null
   for update of l
