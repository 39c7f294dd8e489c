//! What a process says about itself: relays, consumers.
//!
//! Breakers, destinations out of reach and the like live in a process's memory, and whoever operates it sees
//! the database alone. So a process writes down what it has to say, with its heartbeat, when it changed.
//! Refused: asking the processes. Each would need an address that is reached from everywhere.

use crate::event::Timestamp;

/// Largest report, in bytes. The tables take 8,192, counted with the spaces that a database puts into JSON.
pub const REPORT_BYTES_MAX: usize = 6_144;

/// What a process says about itself, for whoever looks at the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessReport {
    /// The process, unique among all.
    pub process: String,
    /// `relay` or `consumer`.
    pub role: &'static str,
    /// The outbox's or the consumer's name.
    pub name: String,
    /// The version of this program.
    pub version: String,
    /// The host.
    pub host: String,
    /// When it started, by its clock.
    pub started_at: Timestamp,
    /// What it says: a JSON object of at most [`REPORT_BYTES_MAX`].
    pub report: String,
}
