-- What was audited is audited again: a cursor went back. Under the ring's lock, so no truncation is under
-- way.
update posthaste.segments set closing = false, audit_note = null where closing or audit_note is not null
