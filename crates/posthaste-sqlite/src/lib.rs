//! Posthaste on SQLite: append in your own transaction, the store behind the relay, and a local broker in a file.
//!
//! Two users, two halves. A service links this crate with `default-features = false` and calls `append` inside its
//! `rusqlite::Transaction`. The relay links the feature `store`; the feature `broker` adds the local broker.

#[cfg(feature = "broker")]
pub mod broker;
mod clock;
#[cfg(feature = "store")]
mod connect;
#[cfg(feature = "store")]
mod error;
pub mod inbox;
#[cfg(feature = "store")]
pub mod writer;

#[cfg(feature = "store")]
pub use connect::Synchronous;
