//! The store's clock: the host's.
//!
//! A database in WAL mode has one host: its processes share memory. So there is one clock, and every process
//! reads the same one; SQLite's own `unixepoch()` asks it too. We ask it directly, because SQLite rounds to
//! milliseconds. If somebody sets it back, leases and due times wait for it to catch up; nothing is lost by
//! that, and nothing but waiting depends on it (epochs fence, not time).

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// A duration in microseconds.
#[cfg(feature = "store")]
pub(crate) fn micros(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The end of time: an event that waits behind another of its key is due then.
#[cfg(feature = "store")]
pub(crate) const NEVER: i64 = i64::MAX;
