//! A transactional outbox: events leave a service's database if and only if its transaction commits.
//!
//! **A service** needs one type of this crate, [`Event`], and `append` of the crate for its database:
//! `posthaste-postgres` or `posthaste-sqlite`. A relay delivers what was appended; usually that is the
//! program `posthaste`.
//!
//! ```
//! use posthaste::Event;
//!
//! let order = 42; // or a UUID, or a text
//! let event = Event::json("orders.placed", &serde_json::json!({ "order": order }))?.with_key(order);
//! assert_eq!(event.key.as_deref(), Some("42"));
//! # Ok::<(), serde_json::Error>(())
//! ```
//!
//! ```text
//! posthaste_postgres::append(&mut tx, &event).await?; // in the transaction that writes the order
//! ```
//!
//! **A consumer** marks what it has handled, in its own transaction: [`inbox`], and `admit` of its database's
//! crate.
//!
//! **A program with a relay inside**, a test for example, calls [`relay::start`] with a [`store`], [`sink`]s
//! and a [`route`] table. [`retry`], [`lifecycle`] and [`envelope`] say what a route can ask for. [`admin`]
//! is for people who look and act. [`intake`] is what a gateway hands events to, [`gcra`] how many it may.
//! [`clock`] is time. [`schema`] is how routes and consumers refuse payloads.
//!
//! **Whoever writes a store, a sink or a source** implements a seam: [`store::Store`], [`sink::Sink`],
//! [`source::Source`].
//!
//! The way of an event: append → store → [`relay`] reads → [`route`] → [`sink::Sink::publish`] → verdicts →
//! [`lifecycle`] decides → [`store::Lease::settle`]. In the next service: [`source`] → [`inbox`] → handler →
//! commit → [`source::Source::ack`]. No database, broker or web client is linked.

pub mod admin;
mod breaker;
pub mod clock;
mod code;
pub mod consumer;
pub mod envelope;
pub mod event;
mod fingerprint;
pub mod gcra;
mod health;
pub mod inbox;
pub mod intake;
pub mod lifecycle;
pub mod relay;
pub mod retry;
pub mod route;
pub mod schema;
pub mod sink;
pub mod source;
pub mod store;
mod tuning;
mod window;

// What the other crates of this project share with this one.
#[doc(hidden)]
pub mod cursor;
#[doc(hidden)]
pub mod failpoint;
#[doc(hidden)]
pub mod mutation;
#[doc(hidden)]
pub mod task;
#[doc(hidden)]
pub mod telemetry;

pub use event::{Event, EventError, Headers, Limits, Timestamp};
