-- T2: whether something of the key is in the way. After the key's lock, so that no hold can leave unseen.
select exists (select from posthaste.held($1, array[$2::text], array[$3::uuid])) as held,
       pg_postmaster_start_time() as witness
