//! How far a look at the log goes before a job is written down. Pure, but for the clock.
//!
//! Letters and what waits have tables of their own, and an index counts them. Events of the log are gone
//! through in windows; a log of a day may hold a hundred million, and whoever asks what would happen waits
//! for the answer. So the look ends after so many windows, or after so long, and says "at least so many".
//!
//! Where the job ends is no matter of counting: that is where the sink's cursor stands, and the first window
//! says it. So a look that ended early bounds the job as well as one that saw everything.
//!
//! Refused: an estimate by numbers, as a rewind has. A filter by key or topic takes an unknown part of them,
//! and a number that is wrong by a thousand times is worse than a bound that is true.

use super::{PREVIEW_SAMPLES, Preview};
use crate::admin::{EventFilter, ROWS_MAX, ReplayChunk};
use std::time::{Duration, Instant};

/// Windows of the log that a look goes through, at most: a hundred thousand events that match, or five times
/// as many rows of which none does.
const WINDOWS_MAX: u32 = 10;
/// No window is begun after so long. A look of the API has eight seconds, and its last statement may take
/// five of them.
const TIME_MAX: Duration = Duration::from_secs(2);

/// How far a look goes.
#[derive(Debug, Clone, Copy)]
pub struct LookBound {
    /// Windows, at most.
    pub windows: u32,
    /// What matches in one window, at most.
    pub rows: i64,
    /// No window is begun after so long.
    pub time: Duration,
}

impl Default for LookBound {
    fn default() -> Self {
        Self { windows: WINDOWS_MAX, rows: ROWS_MAX, time: TIME_MAX }
    }
}

/// A look at events of the log, window by window.
#[derive(Debug)]
pub struct LogLook {
    seen: Preview,
    filter: EventFilter,
    after: i64,
    bound: LookBound,
    begun: Instant,
}

impl LogLook {
    /// Nothing is looked at yet.
    #[must_use]
    pub fn new(filter: &EventFilter, bound: LookBound) -> Self {
        let begun = Instant::now();
        Self { seen: Preview::default(), filter: filter.clone(), after: 0, bound, begun }
    }

    /// The next window: which events, behind which number, and how many of them.
    #[must_use]
    pub fn next(&self) -> (&EventFilter, i64, i64) {
        (&self.filter, self.after, self.bound.rows)
    }

    /// Takes what a window said. `Some`: that was the last one.
    pub fn take(&mut self, window: &ReplayChunk) -> Option<Preview> {
        let seen = &mut self.seen;
        seen.goes += window.events;
        if window.left_alone > 0 {
            *seen.left_alone.entry("events.waits_or_dead".to_owned()).or_default() += window.left_alone;
        }
        let room = (PREVIEW_SAMPLES as usize).saturating_sub(seen.samples.len());
        let samples = window.samples.iter().filter_map(|event| serde_json::to_value(event).ok());
        seen.samples.extend(samples.take(room));
        // The end is where the cursor stood at the first window; it goes on meanwhile.
        self.filter.to_seq = Some(window.to_seq);
        seen.upto = window.to_seq.to_string();
        let is_whole = window.done || window.reached <= self.after;
        self.after = window.reached;
        self.bound.windows = self.bound.windows.saturating_sub(1);
        if !is_whole && self.bound.windows > 0 && self.begun.elapsed() < self.bound.time {
            return None;
        }
        seen.exact = is_whole;
        Some(std::mem::take(seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(events: u64, reached: i64, done: bool) -> ReplayChunk {
        ReplayChunk { events, left_alone: 1, reached, to_seq: 1_000, done, samples: Vec::new() }
    }

    #[test]
    fn a_log_within_the_bound_is_counted_whole() {
        let mut look = LogLook::new(&EventFilter::default(), LookBound::default());
        assert_eq!((look.next().1, look.next().2), (0, ROWS_MAX));
        assert!(look.take(&window(7, 500, false)).is_none());
        assert_eq!((look.next().0.to_seq, look.next().1), (Some(1_000), 500), "it ends where it ended first");
        let seen = look.take(&window(5, 1_000, true)).expect("the last one");
        assert_eq!((seen.goes, seen.matched(), seen.exact, &*seen.upto), (12, 14, true, "1000"));
    }

    #[test]
    fn a_longer_log_is_not_gone_through_and_ends_at_the_same_place() {
        let bound = LookBound { windows: 2, ..LookBound::default() };
        let mut look = LogLook::new(&EventFilter::default(), bound);
        assert!(look.take(&window(7, 10, false)).is_none());
        let seen = look.take(&window(7, 20, false)).expect("the bound");
        assert_eq!((seen.goes, seen.exact, &*seen.upto), (14, false, "1000"));
        let late = LookBound { time: Duration::ZERO, ..LookBound::default() };
        let mut look = LogLook::new(&EventFilter::default(), late);
        let seen = look.take(&window(7, 10, false)).expect("its time is over, and one window was looked at");
        assert_eq!((seen.goes, seen.exact, &*seen.upto), (7, false, "1000"));
    }
}
