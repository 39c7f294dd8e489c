//! Posthaste on SQLite: append in your own transaction, the store behind the relay, and a local broker in a
//! file.
//!
//! Two users, two halves. A service links this crate with `default-features = false` and calls [`append()`]
//! inside its [`rusqlite::Transaction`]. The relay links the feature `store`; the feature `broker` adds the
//! local broker.

#[cfg(feature = "store")]
mod admin;
mod append;
#[cfg(feature = "broker")]
pub mod broker;
mod clock;
mod columns;
#[cfg(feature = "store")]
mod config;
#[cfg(feature = "store")]
mod connect;
#[cfg(feature = "store")]
pub mod consumer;
#[cfg(feature = "store")]
mod error;
#[cfg(feature = "broker")]
mod hash;
pub mod inbox;
#[cfg(feature = "store")]
mod intake;
#[cfg(feature = "store")]
mod jobs;
#[cfg(feature = "store")]
mod log;
#[cfg(feature = "store")]
pub mod migrate;
#[cfg(feature = "store")]
mod readers;
#[cfg(feature = "store")]
mod row;
#[cfg(feature = "store")]
pub mod survey;
#[cfg(feature = "store")]
mod watch;
#[cfg(feature = "store")]
pub mod writer;

#[cfg(feature = "store")]
pub use admin::{CHECKS, SqliteAdmin};
pub use append::{AppendError, Outbox, append, append_all};
#[cfg(feature = "store")]
pub use config::{Retention, SqliteConfig};
#[cfg(feature = "store")]
pub use connect::Synchronous;
#[cfg(feature = "store")]
pub use intake::{SqliteIntake, SqliteTenants};
#[cfg(feature = "store")]
pub use log::store::SqliteStore;

/// The examples of `docs/testing.md` are compiled and run.
#[cfg(all(doctest, feature = "broker"))]
#[doc = include_str!("../../../docs/testing.md")]
pub struct Testing;
