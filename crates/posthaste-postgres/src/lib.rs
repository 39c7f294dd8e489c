//! Posthaste on PostgreSQL (14 and newer): append in your own transaction, and the store behind the relay.
//!
//! Two users, two halves. A service links this crate with `default-features = false, features =
//! ["tokio-postgres"]` and calls [`append`] inside its transaction. The relay links the feature `store`.

#[cfg(feature = "store")]
mod config;
#[cfg(feature = "store")]
mod connect;
#[cfg(feature = "store")]
mod error;
#[cfg(feature = "store")]
mod session;

#[cfg(feature = "store")]
pub use config::{PostgresConfig, Retention, TlsMode};
#[cfg(feature = "store")]
pub use connect::connect;
