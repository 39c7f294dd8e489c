-- T4: positions, and what operators want. Of two positions the higher one is true. A position that was made
-- before an operator's seek, or in another life of the database, is not written. Only the owner says what is
-- in hand and gives back: a zombie's release must not hide a death. It gives back whatever was sought
-- meanwhile, or the next owner would count a death that was none. Nobody becomes the owner here: a zombie would
-- claim what was given back, and never give it back. Whoever reads what has no owner hears of it, and takes it anew.
with s as (select * from unnest($2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[],
                                $8::bigint[], $9::boolean[])
                with ordinality as s (topic, partition, position, position_time, log_id, in_hand, seeks, release, n)),
 w as (
  update posthaste.inbox_partitions p
     set position = case when p.seeks = s.seeks then greatest(p.position, s.position) else p.position end,
         saved_at = clock_timestamp(),
         position_time = case when p.seeks = s.seeks and s.position >= coalesce(p.position, s.position)
                              then timestamptz 'epoch' + interval '1 microsecond' * s.position_time
                              else p.position_time end,
         log_id = case when p.seeks = s.seeks then coalesce(s.log_id, p.log_id) else p.log_id end,
         in_hand = case when p.owner = $10 then case when not s.release then s.in_hand end else p.in_hand end,
         owner = case when p.owner = $10 and s.release then null else p.owner end,
         clean = p.clean or (p.owner = $10 and s.release)
    from s
   where p.consumer = $1 and p.topic = s.topic and p.partition = s.partition
     and (p.seeks = s.seeks or p.owner = $10 and s.release)
     and pg_postmaster_start_time() = timestamptz 'epoch' + interval '1 microsecond' * $11::bigint
)
select pg_postmaster_start_time() as witness, coalesce(c.paused, false) as paused, c.rate_limit, f.seeks, f.owned
  from (select coalesce(array_agg(coalesce(p.seeks, -1) order by s.n), '{}') as seeks,
               coalesce(array_agg(p.owner is not null order by s.n), '{}') as owned
          from s left join posthaste.inbox_partitions p
            on p.consumer = $1 and p.topic = s.topic and p.partition = s.partition) as f
  left join posthaste.controls c on c.kind = 'consumer' and c.name = $1 and (c.until is null or c.until > clock_timestamp())
