-- The locks of many keys, in an order that is the same for everybody who takes several.
select pg_advisory_xact_lock(1347375956, hash)
  from (select distinct hashtext($1::text || chr(31) || topic || chr(31) || order_id::text) as hash
          from unnest($2::text[], $3::uuid[]) as k (topic, order_id)
         order by 1 offset 0) k
