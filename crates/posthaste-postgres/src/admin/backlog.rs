//! How many events a sink has not handled: exact up to a bound, estimated above it. Pure.
//!
//! A gauge that counts the backlog kills the database exactly when the backlog is large (F82). So the log
//! behind the sink's cursors is looked at in windows of rows, in order, until all of it was seen, or
//! enough was counted, or enough was looked at. If all of it was seen, the count is exact; numbers that
//! were drawn and rolled back are no rows and are never counted, and an idle sink has none at all.
//!
//! What was not seen is extrapolated by density: unhandled rows by number in what was seen, times the
//! numbers up to the end of the log. Each lane has a position of its own and its share of the slots, so
//! both sides of the proportion are summed over the lanes.

use posthaste::admin::Count;

/// Counted one by one up to here.
pub(super) const EXACT_MAX: u64 = 10_000;

/// Rows of one window: one more than the bound, so that a sink that reads everything needs one window.
pub(super) const WINDOW: i64 = 10_001;

/// Windows looked at, at most. A sparse filter is exact as long as the log behind it is shorter than
/// these together.
pub(super) const WINDOWS_MAX: usize = 5;

/// Slots of all lanes together.
const SLOTS: f64 = 1024.0;

/// A lane, as far as the estimate needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// Highest number handled.
    pub(super) position: i64,
    /// Slots it has.
    pub(super) slots: i32,
}

/// What one window held.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
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
    /// Age of the youngest row seen, handled or not.
    pub(super) youngest: f64,
}

/// The windows so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlog {
    windows: usize,
    complete: bool,
    reached: i64,
    pending: u64,
    ages: f64,
    oldest: f64,
    youngest: f64,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) backlog: Count,
    pub(super) oldest: f64,
    pub(super) average: f64,
}

impl Backlog {
    /// Nothing seen yet; looking starts behind this number.
    pub(super) fn behind(position: i64) -> Self {
        Self { reached: position, ..Self::default() }
    }

    /// Behind which number to look next, if it is worth it.
    pub(super) fn next(&self) -> Option<i64> {
        let enough = self.complete || self.windows >= WINDOWS_MAX || self.pending > EXACT_MAX;
        (!enough).then_some(self.reached)
    }

    pub(super) fn add(&mut self, window: Window) {
        self.windows += 1;
        self.complete = window.scanned < WINDOW;
        self.reached = window.reached.unwrap_or(self.reached);
        self.pending += window.pending.unsigned_abs();
        self.ages += window.ages;
        self.oldest = self.oldest.max(window.oldest);
        if window.scanned > 0 {
            self.youngest = window.youngest;
        }
    }

    /// `last_value`: the highest number drawn. `newest_age`: age of the log's last row.
    pub(super) fn estimate(&self, lanes: &[Reach], last_value: i64, newest_age: f64) -> Estimate {
        let unseen = if self.complete { 0.0 } else { self.unseen(lanes, last_value) };
        let counted = self.pending as f64;
        // Rows that were not seen lie between the youngest that was and the end of the log.
        let midpoint = (self.youngest + newest_age) / 2.0;
        let total = counted + unseen;
        let average = if total > 0.0 { (self.ages + unseen * midpoint) / total } else { 0.0 };
        let backlog = Count { count: self.pending + unseen.round() as u64, exact: self.complete };
        Estimate { backlog, oldest: self.oldest.max(0.0), average: average.max(0.0) }
    }

    fn unseen(&self, lanes: &[Reach], last_value: i64) -> f64 {
        let share = |lane: &Reach| f64::from(lane.slots) / SLOTS;
        let numbers = |from: i64, to: i64| (to - from).max(0) as f64;
        let seen: f64 = lanes.iter().map(|lane| share(lane) * numbers(lane.position, self.reached)).sum();
        let ahead = |lane: &Reach| share(lane) * numbers(lane.position.max(self.reached), last_value);
        let unseen: f64 = lanes.iter().map(ahead).sum();
        if seen > 0.0 { self.pending as f64 / seen * unseen } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_LANE: [Reach; 1] = [Reach { position: 0, slots: 1024 }];

    fn window(scanned: i64, reached: i64, pending: i64) -> Window {
        Window {
            scanned,
            reached: Some(reached),
            pending,
            ages: pending as f64 * 10.0,
            oldest: 12.0,
            youngest: 8.0,
        }
    }

    #[test]
    fn what_was_seen_whole_is_exact() {
        let mut backlog = Backlog::behind(0);
        backlog.add(window(500, 900, 500));
        assert_eq!(backlog.next(), None);
        let answer = backlog.estimate(&ONE_LANE, 2_000_000, 1.0);
        assert_eq!(answer.backlog, Count { count: 500, exact: true }, "rolled-back numbers are not events");
        assert_eq!((answer.oldest, answer.average), (12.0, 10.0));
    }

    #[test]
    fn idle_is_zero() {
        let mut backlog = Backlog::behind(700);
        backlog.add(Window::default());
        let answer = backlog.estimate(&[Reach { position: 700, slots: 1024 }], 900, 3.0);
        assert_eq!(answer, Estimate { backlog: Count { count: 0, exact: true }, oldest: 0.0, average: 0.0 });
    }

    #[test]
    fn the_rest_is_extrapolated_by_density() {
        let mut backlog = Backlog::behind(0);
        // Every other number was rolled back.
        backlog.add(window(WINDOW, 20_000, WINDOW));
        assert_eq!(backlog.next(), None);
        let answer = backlog.estimate(&ONE_LANE, 200_000, 2.0);
        assert!(!answer.backlog.exact);
        assert!((99_000..=101_000).contains(&answer.backlog.count), "{answer:?}");
        assert!(answer.average > 5.0 && answer.average < 10.0, "{answer:?}");
    }

    #[test]
    fn a_sparse_filter_looks_further_and_then_stops() {
        let mut backlog = Backlog::behind(0);
        for n in 1..=WINDOWS_MAX as i64 {
            assert_eq!(backlog.next(), Some((n - 1) * WINDOW));
            backlog.add(window(WINDOW, n * WINDOW, 10));
        }
        assert_eq!(backlog.next(), None);
        let answer = backlog.estimate(&ONE_LANE, 2 * 5 * WINDOW, 0.0);
        assert_eq!(answer.backlog, Count { count: 100, exact: false });
    }

    #[test]
    fn lanes_at_different_places_count_by_their_share() {
        // Half of the slots have nothing left, the other half is at the beginning.
        let lanes = [Reach { position: 0, slots: 512 }, Reach { position: 100_000, slots: 512 }];
        let mut backlog = Backlog::behind(0);
        for n in 1..=3 {
            backlog.add(window(WINDOW, n * WINDOW, WINDOW / 2));
        }
        let answer = backlog.estimate(&lanes, 100_000, 0.0);
        assert!((49_000..=51_000).contains(&answer.backlog.count), "{answer:?}");
    }
}
