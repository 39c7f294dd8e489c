-- T1a: which messages are held, and the marks of all others. Marks are sorted by id: two members with the
-- same messages queue instead of deadlocking. An insert waits for an open transaction with the same id (F70).
-- The snapshot may be older than what that one committed: hence the second look.
with m as (select * from unnest($2::text[], $3::text[], $4::uuid[], $5::int[], $6::bigint[])
                with ordinality as m (id, topic, order_id, partition, position, n)),
 held as materialized (select h from posthaste.held($1, $3, $4) as h),
--native{
 ins as (insert into posthaste.inbox (consumer, message_id, topic, partition, position)
         select $1, id, topic, partition, position from m where n not in (select h from held) order by id
             on conflict do nothing returning message_id)
--native}
--mapped: admit
select n in (select h from held) as held, id in (select message_id from ins) as first,
       pg_current_xact_id()::text as xid, pg_postmaster_start_time() as witness
  from m order by n
