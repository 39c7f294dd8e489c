//! Time and chance, behind one seam.
//!
//! Durations are measured with tokio's clock, which tests pause and advance. Wall time and jitter come
//! from here alone, so that a year of retries runs in milliseconds under a seed. Nothing durable is
//! judged by this clock: leases, due times and ages are the database's business (F24).

use crate::event::Timestamp;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Wall time and randomness.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock, for logs, metrics and latencies.
    fn now(&self) -> Timestamp;
    /// A uniform number in `[0, 1)`.
    fn chance(&self) -> f64;
}

/// The machine's clock.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn chance(&self) -> f64 {
        // A v4 UUID is the random source that the core links anyway.
        let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
        (high >> 16) as f64 / (1u64 << 48) as f64
    }
}

/// A clock under a seed: it follows tokio's (pausable) time from a fixed start.
#[derive(Debug)]
pub struct SimulatedClock {
    start: tokio::time::Instant,
    state: Mutex<u64>,
}

impl SimulatedClock {
    /// A clock that starts now, with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { start: tokio::time::Instant::now(), state: Mutex::new(seed ^ 0x9e37_79b9_7f4a_7c15) }
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        let micros = self.start.elapsed().as_micros();
        Timestamp(1_700_000_000_000_000).plus_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    fn chance(&self) -> f64 {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // splitmix64: one line, good enough for jitter.
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
