update posthaste.gateway_tenants set paused = $2, changed_at = clock_timestamp() where tenant = $1
returning true
