-- T3 for handlers outside, under the keys' locks: what is still as it was when it was claimed. Whoever was quicker, an
-- operator or a member after our time, has changed it.
select d.seq, d.message_id, d.topic, d.partition, d.position, d.address, d.key, d.order_id, d.headers::text as headers,
       d.payload, d.published_at, d.attempts, d.history::text as history, pg_current_xact_id()::text as xid,
       clock_timestamp() as now, pg_postmaster_start_time() as witness
  from unnest($2::bigint[], $3::text[], $4::int[]) with ordinality as c (seq, message_id, attempts, n)
  join posthaste.inbox_deferred d
    on d.consumer = $1 and d.seq = c.seq and d.message_id = c.message_id and d.attempts = c.attempts
 order by c.n
   for update of d
