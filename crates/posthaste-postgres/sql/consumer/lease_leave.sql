-- A member is gone: the others share without it.
delete from posthaste.processes where process = 'member:' || $2 and role = 'member' and name = $1
