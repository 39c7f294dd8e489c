-- What is not to be changed stays as whoever came before has left it: the row is locked, and read anew.
update posthaste.gateway_tenants
   set rate_per_s = case when $2 then $3 else rate_per_s end,
       burst = case when $4 then $5 else burst end,
       note = coalesce($6, note),
       changed_at = clock_timestamp()
 where tenant = $1
returning true
