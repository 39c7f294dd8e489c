-- Its keys go with it.
delete from posthaste.gateway_tenants where tenant = $1
returning true
