update posthaste_gateway_tenants
   set rate_per_s = iif(?2, ?3, rate_per_s), burst = iif(?4, ?5, burst), note = coalesce(?6, note), changed_at = ?7
 where tenant = ?1
