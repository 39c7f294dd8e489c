//! Posthaste moves events reliably from a service's database to a broker and on.
//!
//! This crate is the library behind it: the vocabulary ([`event`], [`route`], [`retry`], [`lifecycle`]),
//! the seams ([`store`], [`sink`], [`source`], [`admin`], [`clock`]) and the [`relay`] engine. It links no
//! database, broker or web client. Read in this order: [`event`], [`store`], [`sink`], [`relay`].
//!
//! The way of an event: append (in the caller's transaction) → store → `relay` reads → [`route`] →
//! [`sink::Sink::publish`] → verdicts → [`lifecycle`] decides → [`store::Lease::settle`]. In the next
//! service: [`source`] → [`inbox`] (in the handler's transaction) → handler → commit → [`source::Source::ack`].

pub mod admin;
pub mod clock;
mod code;
pub mod cursor;
pub mod envelope;
pub mod event;
pub mod failpoint;
pub mod inbox;
pub mod lifecycle;
pub mod mutation;
pub mod relay;
pub mod retry;
pub mod route;
pub mod sink;
pub mod source;
pub mod store;
pub mod task;
pub mod telemetry;

pub use event::{Event, EventError, Headers, Limits, Timestamp};
