//! Posthaste on PostgreSQL (14 and newer): append in your own transaction, and the store behind the relay.
//!
//! Two users, two halves. A service links this crate with `default-features = false, features =
//! ["tokio-postgres"]` and calls [`append()`] inside its transaction, and [`admit`] in the
//! transaction of a handler. The relay links the feature `store`.
//!
//! Services with another library's transaction take its feature and its module, each with `append` and
//! `admit`: `sqlx`, `diesel`, `diesel-async`, `sea-orm`. None of them needs the store.

#[cfg(feature = "store")]
mod admin;
#[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "diesel", feature = "sea-orm"))]
mod append;
#[cfg(feature = "store")]
pub mod claim;
#[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "diesel", feature = "sea-orm"))]
mod columns;
#[cfg(feature = "store")]
mod config;
#[cfg(feature = "store")]
mod connect;
#[cfg(feature = "store")]
pub mod consumer;
#[cfg(feature = "store")]
mod consumers;
#[cfg(feature = "store")]
mod dead_rows;

pub mod doctor;
#[cfg(feature = "store")]
mod error;
#[cfg(feature = "store")]
mod handler;
#[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "diesel", feature = "sea-orm"))]
mod inbox;
#[cfg(feature = "store")]
mod intake;
#[cfg(feature = "store")]
mod jobs;
#[cfg(feature = "store")]
mod lacks;
#[cfg(feature = "store")]
mod log;
#[cfg(feature = "store")]
pub mod mapped;
#[cfg(feature = "store")]
pub mod migrate;
#[cfg(feature = "store")]
mod pooler;
#[cfg(feature = "store")]
mod rights;
#[cfg(feature = "store")]
mod row;
#[cfg(feature = "store")]
mod session;
#[cfg(feature = "store")]
pub mod survey;

#[cfg(feature = "store")]
pub use admin::PostgresAdmin;
#[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "diesel", feature = "sea-orm"))]
pub use append::Outbox;
#[cfg(feature = "diesel")]
pub use append::diesel;
#[cfg(feature = "diesel-async")]
pub use append::diesel_async;
#[cfg(feature = "sea-orm")]
pub use append::sea_orm;
#[cfg(feature = "sqlx")]
pub use append::sqlx;
#[cfg(feature = "tokio-postgres")]
pub use append::tokio_postgres::{AppendError, append, append_all};
#[cfg(feature = "store")]
pub use config::{PostgresConfig, Retention, TlsMode};
#[cfg(feature = "store")]
pub use connect::connect;
#[cfg(any(feature = "tokio-postgres", feature = "sqlx", feature = "diesel", feature = "sea-orm"))]
pub use inbox::Inbox;
#[cfg(feature = "tokio-postgres")]
pub use inbox::tokio_postgres::{AdmitError, admit};
#[cfg(feature = "store")]
pub use intake::{PostgresIntake, PostgresTenants};
#[cfg(feature = "store")]
pub use log::store::PostgresStore;
