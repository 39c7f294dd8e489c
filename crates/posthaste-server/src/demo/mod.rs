//! The applications of `posthaste demo`: a shop whose orders are billed by another service.
//!
//! One file a concern: `stage` is the directory they live in, `service` commits orders with their events,
//! `consumer` bills them. `chance` makes the same orders of the same seed. The command itself, with its
//! faults and its ledger, is in `cli::demo`.

mod chance;
pub(crate) mod consumer;
pub(crate) mod service;
pub(crate) mod stage;
