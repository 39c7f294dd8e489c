//! What tests are made of: models, faults, suites, real servers, and a simulation.
//!
//! - [`memory`] is the store as an executable model, [`broker`] the same for sources and [`inbox`] for a
//!   consumer's database, [`leases`] for those of plain logs: as plain as can be, so that a real one that
//!   disagrees is wrong, or the contract is.
//! - [`faults`] wraps any store or sink and makes it refuse, hang, be slow, or do the work and lose the
//!   answer.
//! - [`conformance`] holds the suites, written once against the seams and run on every store, sink, source
//!   and inbox. Cases are named after the guarantee that they defend.
//! - [`intake`], [`jobs`], [`tuning`], [`looks`] and [`leases`] hold suites of their own seams.
//! - [`services`] starts real servers privately, on free loopback ports, and ends them with the test.
//! - [`simulation`] drives the production relay on a virtual clock under a seed: many relays, lanes, keys and
//!   faults.
//! - [`spans`] says inside which span a handler runs.
//!
//! Only ever a dev-dependency: production links nothing of it.

pub mod broker;
pub mod conformance;
pub mod faults;
pub mod inbox;
pub mod intake;
pub mod jobs;
pub mod leases;
pub mod looks;
pub mod memory;
mod proxy;
mod receiver;
pub mod services;
pub mod simulation;
pub mod spans;
mod topology;
pub mod tuning;
