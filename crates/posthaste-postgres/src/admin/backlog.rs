//! How many events a sink has not handled: exact up to a bound, estimated above it. Pure.
//!
//! A gauge that counts the backlog kills the database exactly when the backlog is large (F82). So the log
//! behind the sink's cursors is looked at in windows of rows, in order, until all of it was seen, or
//! enough was counted, or enough was looked at. If all of it was seen, the count is exact; numbers that
//! were drawn and rolled back are no rows and are never counted, and an idle sink has none at all.
//!
//! The rest is probed: short runs of numbers at even distances up to the end of the log. Unhandled rows
//! in them, by number, times the numbers that are left. Extrapolating the density of what was seen would
//! cost less and be wrong wherever the log changes its character, after a burst of rolled-back
//! transactions for one.

use posthaste::admin::Count;

/// Counted one by one up to here.
pub(super) const EXACT_MAX: u64 = 10_000;

/// Rows of one window: one more than the bound, so that a sink that reads everything needs one window.
pub(super) const WINDOW: i64 = 10_001;

/// Windows looked at, at most. A sparse filter is exact as long as the log behind it is shorter than
/// these together.
const WINDOWS_MAX: usize = 5;

/// Probes, and how many numbers each looks at: together less than a window.
const PROBES: i64 = 64;
pub(super) const PROBE_NUMBERS: i64 = 128;

/// What one window held.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WindowCount {
    /// Rows seen.
    pub(super) scanned: i64,
    /// Highest number seen.
    pub(super) reached: Option<i64>,
    /// Rows not handled.
    pub(super) pending: i64,
    /// Sum of their ages in seconds.
    pub(super) ages: f64,
    /// Age of the oldest.
    pub(super) oldest: f64,
}

/// What the probes held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probes {
    /// Rows not handled.
    pub(super) pending: i64,
    /// Sum of their ages in seconds.
    pub(super) ages: f64,
}

/// The windows so far.
#[derive(Debug, Clone, Default)]
pub(super) struct BacklogCount {
    windows: usize,
    complete: bool,
    reached: i64,
    pending: u64,
    ages: f64,
    oldest: f64,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) backlog: Count,
    pub(super) oldest: f64,
    pub(super) average: f64,
}

impl BacklogCount {
    /// Nothing seen yet; looking starts behind this number.
    pub(super) fn behind(position: i64) -> Self {
        Self { reached: position, ..Self::default() }
    }

    /// Behind which number to look next, if it is worth it.
    pub(super) fn next(&self) -> Option<i64> {
        let enough = self.complete || self.windows >= WINDOWS_MAX || self.pending > EXACT_MAX;
        (!enough).then_some(self.reached)
    }

    pub(super) fn add(&mut self, window: WindowCount) {
        self.windows += 1;
        self.complete = window.scanned < WINDOW;
        self.reached = window.reached.unwrap_or(self.reached);
        self.pending += window.pending.unsigned_abs();
        self.ages += window.ages;
        self.oldest = self.oldest.max(window.oldest);
    }

    /// Behind which numbers to probe; none when everything was seen.
    pub(super) fn probes(&self, last_value: i64) -> Vec<i64> {
        if self.complete {
            return Vec::new();
        }
        let step = self.unseen(last_value) as f64 / PROBES as f64;
        // From the middle of each step on: nothing is gained by probing next to what was seen.
        (0..PROBES).map(|n| self.reached + ((n as f64 + 0.5) * step) as i64).collect()
    }

    /// The answer when everything was seen.
    pub(super) fn exact(&self) -> Estimate {
        let count = self.pending;
        let average = if count > 0 { self.ages / count as f64 } else { 0.0 };
        Estimate {
            backlog: Count { count, exact: true },
            oldest: self.oldest.max(0.0),
            average: average.max(0.0),
        }
    }

    /// The answer when the rest was probed.
    pub(super) fn estimate(&self, last_value: i64, probes: &Probes) -> Estimate {
        // Below 1 where the rest is so short that probes overlap and see a row twice.
        let scale = self.unseen(last_value) as f64 / (PROBES * PROBE_NUMBERS) as f64;
        let unseen = probes.pending as f64 * scale;
        let total = self.pending as f64 + unseen;
        let average = if total > 0.0 { (self.ages + probes.ages * scale) / total } else { 0.0 };
        Estimate {
            backlog: Count { count: self.pending + unseen.round() as u64, exact: false },
            oldest: self.oldest.max(0.0),
            average: average.max(0.0),
        }
    }

    fn unseen(&self, last_value: i64) -> i64 {
        (last_value - self.reached).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(scanned: i64, reached: i64, pending: i64) -> WindowCount {
        WindowCount { scanned, reached: Some(reached), pending, ages: pending as f64 * 10.0, oldest: 12.0 }
    }

    #[test]
    fn what_was_seen_whole_is_exact() {
        let mut backlog = BacklogCount::behind(0);
        backlog.add(window(500, 900, 500));
        assert_eq!((backlog.next(), backlog.probes(2_000_000)), (None, Vec::new()));
        let answer = backlog.exact();
        assert_eq!(answer.backlog, Count { count: 500, exact: true }, "rolled-back numbers are not events");
        assert_eq!((answer.oldest, answer.average), (12.0, 10.0));
    }

    #[test]
    fn idle_is_zero() {
        let mut backlog = BacklogCount::behind(700);
        backlog.add(WindowCount::default());
        let answer = backlog.exact();
        assert_eq!(answer, Estimate { backlog: Count { count: 0, exact: true }, oldest: 0.0, average: 0.0 });
    }

    /// Probes a made-up log in which a number is a row if `is_row` says so.
    fn probe(backlog: &BacklogCount, last_value: i64, is_row: impl Fn(i64) -> bool) -> Estimate {
        let numbers = backlog.probes(last_value).into_iter().flat_map(|from| from + 1..=from + PROBE_NUMBERS);
        let pending = numbers.filter(|number| *number <= last_value && is_row(*number)).count() as i64;
        backlog.estimate(last_value, &Probes { pending, ages: pending as f64 * 2.0 })
    }

    #[test]
    fn the_rest_is_what_the_probes_say() {
        let mut backlog = BacklogCount::behind(0);
        backlog.add(window(WINDOW, WINDOW, WINDOW));
        assert_eq!(backlog.next(), None);
        // Behind what was seen, two thirds of the numbers were rolled back, in runs.
        let answer = probe(&backlog, 1_000_000, |number| number / 3_000 % 3 == 0);
        assert!(!answer.backlog.exact);
        assert!((290_000..=390_000).contains(&answer.backlog.count), "{answer:?}");
        assert!(answer.average > 2.0 && answer.average < 3.0, "{answer:?}");
    }

    #[test]
    fn a_short_rest_is_not_counted_twice() {
        let mut backlog = BacklogCount::behind(0);
        backlog.add(window(WINDOW, WINDOW, WINDOW));
        let answer = probe(&backlog, WINDOW + 2_000, |_| true);
        assert!((WINDOW as u64..=WINDOW as u64 + 2_200).contains(&answer.backlog.count), "{answer:?}");
    }

    #[test]
    fn a_sparse_filter_looks_further_and_then_stops() {
        let mut backlog = BacklogCount::behind(0);
        for n in 1..=WINDOWS_MAX as i64 {
            assert_eq!(backlog.next(), Some((n - 1) * WINDOW));
            backlog.add(window(WINDOW, n * WINDOW, 10));
        }
        assert_eq!(backlog.next(), None);
        let answer = probe(&backlog, 1_000_000, |_| false);
        assert_eq!(answer.backlog, Count { count: 50, exact: false });
    }
}
