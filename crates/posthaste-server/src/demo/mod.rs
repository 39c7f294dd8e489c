//! The applications of `posthaste demo`: a shop whose orders are billed by another service.
//!
//! One file a concern: `stage` is the directory they live in, `service` commits orders with their events,
//! `consumer` bills them, `ledger` counts what became of every event. `chance` makes the same orders of the
//! same seed. With `--gateway` the shop is a `tenant` who hands in by HTTP, and `handed` is the ledger's part
//! about that. The command itself, with its faults, is in `cli::demo`.

mod chance;
pub(crate) mod consumer;
mod handed;
pub(crate) mod ledger;
pub(crate) mod service;
pub(crate) mod stage;
pub(crate) mod tenant;
