//! What others see of a lane at work.

use std::sync::atomic::{AtomicU64, Ordering as Atomic};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What health is judged by (F85): whether the lane's loop turns, and since when it owes a settlement.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Instant,
    turned_ms: AtomicU64,
    /// Events in hand.
    pub(crate) unsettled: AtomicU64,
    /// When something was settled last, or nothing was owed.
    clear_ms: AtomicU64,
    /// The code with which the sink is out of reach.
    outage: Mutex<Option<String>>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            start: Instant::now(),
            turned_ms: zero(),
            unsettled: zero(),
            clear_ms: zero(),
            outage: Mutex::default(),
        }
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// One turn of the loop.
    pub(crate) fn turn(&self, unsettled: usize) {
        let now = self.now_ms();
        self.turned_ms.store(now, Atomic::Relaxed);
        self.unsettled.store(unsettled as u64, Atomic::Relaxed);
        if unsettled == 0 {
            self.clear_ms.store(now, Atomic::Relaxed);
        }
    }

    /// With which code the sink is out of reach, if it is.
    pub(crate) fn outage(&self) -> Option<String> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_outage(&self, code: Option<String>) {
        *self.outage.lock().unwrap_or_else(PoisonError::into_inner) = code;
    }

    pub(crate) fn settled(&self) {
        self.clear_ms.store(self.now_ms(), Atomic::Relaxed);
    }

    /// Time since the loop turned, and since it owed nothing or settled something.
    pub(crate) fn ages(&self) -> (Duration, Duration) {
        let now = self.now_ms();
        let age = |at: &AtomicU64| Duration::from_millis(now.saturating_sub(at.load(Atomic::Relaxed)));
        (age(&self.turned_ms), age(&self.clear_ms))
    }
}
