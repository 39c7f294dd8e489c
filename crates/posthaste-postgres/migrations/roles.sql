-- Least privilege. `:app` appends and marks what it consumed, and can do nothing else; `:consumer` does that and what the
-- consumer keeps beside its marks; `:relay` reads, settles and truncates old segments; `:admin` looks at everything and
-- acts on dead letters, lanes, controls and what consumers keep; `:gateway` appends for tenants and remembers their requests,
-- and reads no event.
grant usage on schema posthaste to :app, :consumer, :relay, :admin, :gateway;

grant insert (:columns) on posthaste.outbox to :app, :consumer, :gateway;
grant usage on sequence posthaste.outbox_seq to :app, :consumer, :gateway;
-- SELECT only: USAGE would let an application turn the ring.
grant select on sequence posthaste.outbox_segment, posthaste.outbox_wakeup to :app, :consumer, :gateway;
grant select, insert on posthaste.idempotency_keys to :app, :consumer;
-- DELETE, and UPDATE of a column for the lock before it: whoever consumes purges its own marks; there need not be a relay
-- where it lives.
grant select, insert, delete, update (processed_at) on posthaste.inbox to :app;
grant execute on all functions in schema posthaste to :app, :consumer, :relay, :admin, :gateway;
-- It runs by its trigger alone: on a table of their own they could let it say that somebody is verified.
revoke execute on function posthaste.publish_audit() from :app, :consumer, :relay, :admin, :gateway;

grant select, insert, update, delete on posthaste.inbox, posthaste.inbox_deferred, posthaste.inbox_dead_letters,
                                        posthaste.inbox_partitions to :consumer, :admin;
-- Both deferred messages and dead letters draw their numbers here.
grant usage on sequence posthaste.inbox_deferred_seq_seq to :consumer, :admin;
grant select, insert, update, delete on posthaste.processes to :consumer, :relay, :gateway;
-- Who says that somebody is verified, or that an act was denied, is an administrator.
revoke insert on posthaste.audit from :consumer, :relay;
grant insert (actor, action, reason, detail, trace_id) on posthaste.audit to :consumer, :relay;
grant insert on posthaste.audit to :admin;
grant select on posthaste.controls, posthaste.migrations to :consumer;

grant select on all tables in schema posthaste to :relay, :admin;
grant select on sequence posthaste.outbox_seq to :relay, :admin;
grant select, update on sequence posthaste.outbox_segment, posthaste.outbox_wakeup to :relay, :admin;
grant truncate on posthaste.outbox_1, posthaste.outbox_2, posthaste.outbox_3, posthaste.outbox_4,
                  posthaste.outbox_5, posthaste.outbox_6, posthaste.outbox_7, posthaste.outbox_8 to :relay;
grant insert, update, delete on posthaste.state, posthaste.relays, posthaste.lanes, posthaste.lease_tokens,
                                posthaste.receipts, posthaste.deferred, posthaste.dead_letters to :relay, :admin;
grant update on posthaste.ring, posthaste.segments to :relay, :admin;
grant delete on posthaste.idempotency_keys to :relay;
grant insert, update, delete on posthaste.controls, posthaste.jobs to :admin;

grant select on posthaste.gateway_tenants, posthaste.gateway_keys, posthaste.state, posthaste.migrations to :gateway;
-- UPDATE of a column for the lock before a purge.
grant select, insert, delete, update (at) on posthaste.gateway_requests, posthaste.gateway_commits to :gateway;
grant insert, update, delete on posthaste.gateway_tenants, posthaste.gateway_keys to :admin;
