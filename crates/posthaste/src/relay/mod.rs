//! The relay engine: moves events from a store to sinks, at least once, in order of their key.
//!
//! One supervisor serves one outbox; a process runs as many as it has outboxes. The supervisor beats its
//! heart, takes and gives back lanes by fair share, and starts one `lane` task for each lane it owns.
//! Everything about events happens in the lane. Read next: `handle.rs`, `supervise.rs`, `lane.rs`, then its
//! parts in the order of an event's life: `reading.rs`, `arrival.rs`, `window.rs`, `publish.rs`,
//! `settling.rs`, `deferred.rs`.
//!
//! Refused: one task for a whole outbox. A sink that hangs would stop the others (F30); as it is, every
//! sink and lane has its own cursor, its own window, its own breaker.

mod arrival;
mod batch;
mod call;
mod calls;
mod caution;
mod deferred;
mod destinations;
mod handle;
mod keys;
mod lane;
mod pace;
mod publish;
mod reading;
mod settings;
mod settling;
mod share;
mod supervise;
mod terms;
mod window;

pub use crate::health::diary::{News, Outage};
pub use handle::{DrainOutcome, Health, Process, RelayHandle, RelayPlan, SinkEntry, start, start_in};
pub(crate) use pace::RateLimit;
pub use settings::RelaySettings;
