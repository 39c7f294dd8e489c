//! Adopted outbox tables on a real server: their owners' DDL, plain INSERTs, and the production engine.

mod admin;
mod adr;
mod beside;
mod faults;
mod ground;
mod held;
mod migrate;
mod others;
mod outbox_events;
mod prisma;
mod refused;
mod speed;
mod talkie;
