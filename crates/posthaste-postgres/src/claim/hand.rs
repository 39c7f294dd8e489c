//! What a lease has in hand, and what it keeps in mind for tables that cannot hold it.

use super::row::{Claimed, Moment};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Rows that are left alone for a while, at most. With more of them nothing is claimed until some are free
/// again.
const KEPT_MAX: usize = 10_000;

/// What is kept in mind of a row that is not in hand.
#[derive(Debug, Clone, Copy)]
struct Kept {
    /// The row is not claimed before this time.
    until: Instant,
    /// Attempts, where the table does not count them.
    attempts: Option<u32>,
}

/// Rows in hand by their number, and rows in mind by their key.
#[derive(Debug, Default)]
pub(super) struct Hand {
    last: i64,
    rows: BTreeMap<i64, Claimed>,
    kept: FxHashMap<String, Kept>,
}

impl Hand {
    /// The number of the next row. Numbers grow as long as the lease lives.
    pub(super) fn next(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    pub(super) fn take(&mut self, seq: i64, row: Claimed) {
        self.rows.insert(seq, row);
    }

    pub(super) fn row(&self, seq: i64) -> Option<&Claimed> {
        self.rows.get(&seq)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = (i64, &Claimed)> {
        self.rows.iter().map(|(seq, row)| (*seq, row))
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Forgets a row that is settled.
    pub(super) fn drop_row(&mut self, seq: i64) -> Option<Claimed> {
        self.rows.remove(&seq)
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    /// Notes the marks of these rows after a renewal, by key. Answers how many were not renewed, because
    /// somebody else has them.
    pub(super) fn renewed(&mut self, marks: &FxHashMap<String, Moment>, asked: &[i64]) -> usize {
        let mut lost = 0;
        for seq in asked {
            let Some(row) = self.rows.get_mut(seq) else { continue };
            match marks.get(&row.id) {
                Some(mark) => row.mark = Some(*mark),
                None => lost += 1,
            }
        }
        lost
    }

    /// Leaves a row alone for a while.
    pub(super) fn keep(&mut self, id: String, pause: Duration, attempts: Option<u32>) {
        self.kept.insert(id, Kept { until: Instant::now() + pause, attempts });
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.kept.remove(id);
    }

    /// Attempts of a row that only we count.
    pub(super) fn attempts(&self, id: &str) -> u32 {
        self.kept.get(id).and_then(|kept| kept.attempts).unwrap_or(0)
    }

    /// Keys to leave out now. If there are too many of them, the answer is how long to claim nothing at all.
    pub(super) fn left_out(&mut self) -> Result<Vec<String>, Duration> {
        let now = Instant::now();
        self.kept.retain(|_, kept| kept.until > now || kept.attempts.is_some());
        if self.kept.len() >= KEPT_MAX {
            // Counts of rows whose time has come are the cheapest thing to forget. Such rows are tried a
            // little longer.
            self.kept.retain(|_, kept| kept.until > now);
        }
        if self.kept.len() >= KEPT_MAX {
            let first = self.kept.values().map(|kept| kept.until).min().unwrap_or(now);
            return Err(first.saturating_duration_since(now).max(Duration::from_millis(10)));
        }
        Ok(self.kept.iter().filter(|(_, kept)| kept.until > now).map(|(id, _)| id.clone()).collect())
    }

    /// How long until a row that was left alone may be looked at again.
    pub(super) fn next_kept(&self) -> Option<Duration> {
        let now = Instant::now();
        self.kept.values().filter(|kept| kept.until > now).map(|kept| kept.until - now).min()
    }
}
