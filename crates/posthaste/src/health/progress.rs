//! What others see of a lane at work.

use super::pulse::PulseMeter;
use crate::admin::OutOfReach;
use crate::event::Timestamp;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as Atomic};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A lane that has owed a settlement for so long is behind, and its backlog grows.
const BEHIND_AFTER: Duration = Duration::from_secs(1);

/// What health is judged by (F85): whether the lane's loop turns, and since when it owes a settlement.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Instant,
    turned_ms: AtomicU64,
    /// Events in hand.
    pub(crate) unsettled: AtomicU64,
    /// When something was settled last, or nothing was owed.
    clear_ms: AtomicU64,
    /// Settlements that changed what waits or is dead.
    pub(crate) asides: AtomicU64,
    is_behind: AtomicBool,
    /// How often it fell behind.
    falls: AtomicU64,
    away: Mutex<LaneOutage>,
    pub(crate) pulse: PulseMeter,
}

/// What a lane cannot reach.
#[derive(Debug, Clone, Default)]
pub(crate) struct LaneOutage {
    /// The sink, as a whole.
    pub(crate) sink: Option<OutOfReach>,
    /// Destinations of it, by name.
    pub(crate) destinations: BTreeMap<String, OutOfReach>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            start: Instant::now(),
            turned_ms: zero(),
            unsettled: zero(),
            clear_ms: zero(),
            asides: zero(),
            is_behind: AtomicBool::new(false),
            falls: zero(),
            away: Mutex::default(),
            pulse: PulseMeter::new(),
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

    /// What is out of reach.
    pub(crate) fn away(&self) -> MutexGuard<'_, LaneOutage> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sink is out of reach. Since the first time that this was said; with the last failure.
    pub(crate) fn sink_failed(&self, code: &str, error: &str, now: Timestamp) {
        let sink = &mut self.away().sink;
        let since = sink.as_ref().map_or(now, |before| before.since);
        *sink = Some(OutOfReach::new(since, code, error));
    }

    pub(crate) fn sink_answered(&self) {
        self.away().sink = None;
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

    /// Another number than before: figures of the store are out of date, because something was put aside or
    /// the lane has fallen behind. A lane that stays behind is no news.
    pub(crate) fn news(&self) -> u64 {
        let is_behind = self.ages().1 > BEHIND_AFTER;
        if !self.is_behind.swap(is_behind, Atomic::Relaxed) && is_behind {
            self.falls.fetch_add(1, Atomic::Relaxed);
        }
        self.asides.load(Atomic::Relaxed) + self.falls.load(Atomic::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_falls_behind_is_news_once() {
        let (lane, second) = (Progress::new(), Duration::from_secs(1));
        lane.turn(0);
        assert_eq!(lane.news(), 0, "F83: an idle lane is none");
        for _ in 0..5 {
            lane.turn(7);
            lane.settled();
            tokio::time::advance(second / 2).await;
            assert_eq!(lane.news(), 0, "what is settled soon is none");
        }
        tokio::time::advance(second).await;
        assert_eq!((lane.news(), lane.news()), (1, 1), "it is behind");
        tokio::time::advance(10 * second).await;
        assert_eq!(lane.news(), 1, "it stays behind");
        lane.turn(0);
        assert_eq!(lane.news(), 1, "it has caught up");
        lane.asides.fetch_add(2, Atomic::Relaxed);
        tokio::time::advance(2 * second).await;
        assert_eq!(lane.news(), 4, "it is behind again, and two were put aside");
    }
}
