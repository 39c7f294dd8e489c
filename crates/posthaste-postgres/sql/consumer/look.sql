-- The second look, at everything that was not first: its mark, whether that is from another place, and
-- whether its key is held by now. A statement of its own, hence with a snapshot that is younger than every
-- wait of T1a.
select m.n - 1 as n, k.outcome::text as outcome,
       k.topic is not null
         and (k.topic, k.partition, k.position) is distinct from (m.topic, m.partition, m.position) as elsewhere,
       m.n in (select h from posthaste.held($1, $3, $4) as h) as held, pg_postmaster_start_time() as witness
  from unnest($2::text[], $3::text[], $4::uuid[], $5::int[], $6::bigint[])
       with ordinality as m (id, topic, order_id, partition, position, n)
--native{
  left join (select distinct on (id) * from posthaste.marks($1, $2)) k on k.id = m.id
--native}
--mapped: look
 order by m.n
