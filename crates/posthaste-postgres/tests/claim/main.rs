//! Adopted outbox tables on a real server: their owners' DDL, plain INSERTs, and the production engine.

mod adr;
mod ground;
mod others;
mod outbox_events;
mod prisma;
mod refused;
mod talkie;
