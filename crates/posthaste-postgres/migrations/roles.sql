-- Least privilege. `:app` appends and marks what it consumed, and can do nothing else; `:relay` reads, settles and truncates old
-- segments; `:admin` looks at everything and acts on dead letters, lanes and controls.
grant usage on schema posthaste to :app, :relay, :admin;

grant insert (:columns) on posthaste.outbox to :app;
grant usage on sequence posthaste.outbox_seq to :app;
-- SELECT only: USAGE would let an application turn the ring.
grant select on sequence posthaste.outbox_segment, posthaste.outbox_wakeup to :app;
grant select, insert on posthaste.idempotency_keys to :app;
-- DELETE, and UPDATE of a column for the lock before it: whoever consumes purges its own marks; there need not be a relay
-- where it lives.
grant select, insert, delete, update (processed_at) on posthaste.inbox to :app;
grant execute on all functions in schema posthaste to :app, :relay, :admin;

grant select on all tables in schema posthaste to :relay, :admin;
grant select on sequence posthaste.outbox_seq to :relay, :admin;
grant select, update on sequence posthaste.outbox_segment, posthaste.outbox_wakeup to :relay, :admin;
grant truncate on posthaste.outbox_1, posthaste.outbox_2, posthaste.outbox_3, posthaste.outbox_4,
                  posthaste.outbox_5, posthaste.outbox_6, posthaste.outbox_7, posthaste.outbox_8 to :relay;
grant insert, update, delete on posthaste.state, posthaste.relays, posthaste.lanes, posthaste.lease_tokens,
                                posthaste.receipts, posthaste.deferred, posthaste.dead_letters to :relay, :admin;
grant update on posthaste.ring, posthaste.segments to :relay, :admin;
grant delete on posthaste.idempotency_keys to :relay;
grant insert on posthaste.audit to :relay, :admin;
grant insert, update, delete on posthaste.controls to :admin;
