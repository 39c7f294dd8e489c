//! The cursor of a sink's lane over the log: pure, and the heart of G2.
//!
//! A number (`seq`) is drawn before its transaction commits, so numbers become visible out of order and
//! a reader that remembers only the last number loses events (F1). Fencing with the snapshot's xmax
//! loses some too (F3). This cursor goes on at once, remembers *which transactions were still running*,
//! and looks again for their rows when they end.
//!
//! Durable meaning of a [`Position`]:
//!
//! > handled = every row with `seq ≤ position` whose xid is visible in `snapshot`
//! > (while catching up also: with `seq ≤ late_position` and visible in `target`). Nothing else.
//!
//! A [`Mark`] (W, p): p was read before xid W was assigned, so a transaction with an xid above W has
//! drawn no number up to p. `low(x)` is the largest p among marks with W < x, hence no row of
//! transaction x has `seq ≤ low(x)`. (If W < x, x got its xid after W did, hence after p was read; all of
//! x's numbers were drawn after its xid, so they are above p.)
//!
//! A read at snapshot N with the cursor's snapshot S looks
//!
//! - **late (a)**: `low(S.xmax) < seq ≤ position`, not visible in S: everything S listed as running or
//!   did not know of yet. S.xmax is "last completed + 1", so transactions above it may be running and
//!   unlisted; each of them is ≥ S.xmax and so has no row at or below `low(S.xmax)`.
//! - **late (b), elders**: for each xid that S listed with `low(xid) < low(S.xmax)` and that N no longer
//!   lists, its rows in `(low(xid), low(S.xmax)]`. A transaction open for an hour costs this one look.
//! - then the **tail**: `seq > position`.
//!
//! Never one query for late and new rows together: the position would go backwards. Late rows are
//! published before the tail. When a page is full of late rows, the cursor catches up against a fixed
//! target first, so a transaction of a million events is neither loaded whole, nor lost half-way, nor
//! sent again from its start after a crash.
//!
//! Stores supply the rows; this module says where to look and what the position is afterwards. The
//! PostgreSQL store and the testkit's model both run on it.

use crate::mutation::{Mutation, active};
use std::fmt;
use std::str::FromStr;

/// A full transaction id. It never wraps.
pub type Xid = u64;

/// Which transactions had ended when a snapshot was taken. Text form `xmin:xmax:xip,xip`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Everything below has ended.
    pub xmin: Xid,
    /// Everything from here on had not ended.
    pub xmax: Xid,
    /// What was running in between, ascending.
    pub running: Vec<Xid>,
}

impl Snapshot {
    /// Whether a transaction's rows were visible, supposing that it committed.
    #[must_use]
    pub fn sees(&self, xid: Xid) -> bool {
        xid < self.xmin || (xid < self.xmax && self.running.binary_search(&xid).is_err())
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin, self.xmax)?;
        for (i, xid) in self.running.iter().enumerate() {
            write!(f, "{}{xid}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Snapshot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no snapshot");
        let mut parts = text.split(':');
        let mut number = || parts.next().and_then(|part| part.parse().ok()).ok_or_else(bad);
        let (xmin, xmax) = (number()?, number()?);
        let list = parts.next().unwrap_or("");
        let running = list.split(',').filter(|xid| !xid.is_empty()).map(|xid| xid.parse().map_err(|_| bad()));
        let mut running = running.collect::<Result<Vec<Xid>, _>>()?;
        running.sort_unstable();
        Ok(Self { xmin, xmax, running })
    }
}

/// `p` was read before `xid` was assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// W.
    pub xid: Xid,
    /// p.
    pub seq: i64,
}

/// The marks in memory: few, thinned. Dropping one only lowers `low`, which is always safe.
#[derive(Debug, Clone, Default)]
pub struct Marks {
    /// Ascending in both parts.
    marks: Vec<Mark>,
}

/// How many marks are kept. Each read consults them once; a few dozen span hours once thinned.
const MARKS_KEPT: usize = 48;

impl Marks {
    /// Adds a mark. One that says less than a mark already there is left out.
    pub fn add(&mut self, mark: Mark) {
        let at = self.marks.partition_point(|m| m.xid <= mark.xid);
        if self.marks[..at].last().is_some_and(|before| before.seq >= mark.seq) {
            return;
        }
        // Those with a higher xid and no higher seq say less than the new one.
        let from = at;
        let worse = self.marks[from..].iter().take_while(|m| m.seq <= mark.seq).count();
        self.marks.splice(from..from + worse, [mark]);
    }

    /// The largest p among marks with W < x, or 0.
    #[must_use]
    pub fn low(&self, xid: Xid) -> i64 {
        let below = self.marks.partition_point(|m| m.xid < xid);
        self.marks[..below].last().map_or(0, |m| m.seq)
    }

    /// Thins the marks, keeping the newest one below the oldest running transaction: it decides how far
    /// back that transaction's rows are looked for.
    pub fn thin(&mut self, oldest_running: Xid) {
        if self.marks.len() <= MARKS_KEPT {
            return;
        }
        let anchor = self.marks.partition_point(|m| m.xid < oldest_running);
        self.marks.drain(..anchor.saturating_sub(1));
        // The younger half stays; of the older half every other one goes, until few enough are left.
        while self.marks.len() > MARKS_KEPT {
            let half = self.marks.len() - MARKS_KEPT / 2;
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index == 1 || index > half || index % 2 == 1
            });
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
}

/// What has been handled; see the module's text for its meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Highest number of the tail read so far.
    pub position: i64,
    /// The snapshot that goes with it.
    pub snapshot: Snapshot,
    /// While catching up: the fixed snapshot that late rows are read at, and how far.
    pub catching_up: Option<CatchUp>,
}

/// The state of catching up with late rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatchUp {
    /// The fixed snapshot.
    pub target: Snapshot,
    /// Late rows up to here are handled.
    pub late_position: i64,
}

/// A transaction that was running in the cursor's snapshot and has ended since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elder {
    /// Its id.
    pub xid: Xid,
    /// None of its rows is at or below this.
    pub low: i64,
}

/// Where the next read looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// First elders in `(elder.low, late_from]`, then late rows in `(late_from, position]` that the
    /// cursor's snapshot does not show, then the tail.
    Fresh {
        /// `low(S.xmax)`.
        late_from: i64,
        /// Transactions that ended since, if `now` was given.
        elders: Vec<Elder>,
    },
    /// Late rows in `(late_position, position]`, not visible in the snapshot, visible in the target.
    CatchUp,
}

impl Position {
    /// The position of a cursor that has handled everything `snapshot` shows up to `position`.
    #[must_use]
    pub fn new(position: i64, snapshot: Snapshot) -> Self {
        Self { position, snapshot, catching_up: None }
    }

    /// Where late rows begin: `low(S.xmax)`, never above the position.
    #[must_use]
    pub fn late_from(&self, marks: &Marks) -> i64 {
        marks.low(self.snapshot.xmax).min(self.position)
    }

    /// Those that were running and are old enough to have rows below `late_from`, whether ended or not.
    pub fn elders<'a>(&'a self, marks: &'a Marks) -> impl Iterator<Item = Elder> + 'a {
        let late_from = self.late_from(marks);
        self.snapshot
            .running
            .iter()
            .map(|xid| Elder { xid: *xid, low: marks.low(*xid) })
            .filter(move |elder| elder.low < late_from && !active(Mutation::SkipElders))
    }

    /// Where to look at snapshot `now`.
    #[must_use]
    pub fn look(&self, marks: &Marks, now: &Snapshot) -> Look {
        if self.catching_up.is_some() {
            return Look::CatchUp;
        }
        let ended = |elder: &Elder| now.running.binary_search(&elder.xid).is_err() && elder.xid < now.xmax;
        Look::Fresh { late_from: self.late_from(marks), elders: self.elders(marks).filter(ended).collect() }
    }

    /// After a page of late rows that was full: catch up with the rest first, at this very snapshot.
    #[must_use]
    pub fn after_full_late_page(&self, now: Snapshot, last_late_seq: i64) -> Self {
        let catching_up = Some(CatchUp { target: now, late_position: last_late_seq });
        Self { position: self.position, snapshot: self.snapshot.clone(), catching_up }
    }

    /// After a step of catching up. `reached`: late rows up to here are handled; the step that reaches
    /// the position ends it.
    #[must_use]
    pub fn after_catch_up(&self, reached: i64) -> Self {
        let Some(catch_up) = &self.catching_up else { return self.clone() };
        if reached >= self.position {
            return Self::new(self.position, catch_up.target.clone());
        }
        let catching_up = Some(CatchUp {
            target: catch_up.target.clone(),
            late_position: reached.max(catch_up.late_position),
        });
        Self { position: self.position, snapshot: self.snapshot.clone(), catching_up }
    }

    /// After all late rows and a tail that was read up to `reached`.
    #[must_use]
    pub fn after_tail(&self, now: Snapshot, reached: i64) -> Self {
        Self::new(self.position.max(reached), now)
    }

    /// Whether a row is handled.
    #[must_use]
    pub fn has_handled(&self, seq: i64, xid: Xid) -> bool {
        let settled = seq <= self.position && self.snapshot.sees(xid);
        let caught_up = self
            .catching_up
            .as_ref()
            .is_some_and(|c| seq <= c.late_position && seq <= self.position && c.target.sees(xid));
        settled || caught_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_snapshot_travels_as_text(xmin: Xid, xmax: Xid, mut running: Vec<Xid>) {
            running.sort_unstable();
            let snapshot = Snapshot { xmin, xmax, running };
            prop_assert_eq!(snapshot.to_string().parse(), Ok(snapshot));
        }

        /// What is no snapshot is refused, and what was read says the same when it is written.
        #[test]
        fn any_text_is_a_snapshot_or_refused(text in "[0-9]{1,2}:[0-9]{1,2}:[0-9,x]{0,8}|\\PC{0,24}") {
            if let Ok(snapshot) = text.parse::<Snapshot>() {
                prop_assert_eq!(snapshot.to_string().parse(), Ok(snapshot));
            }
        }
    }

    #[test]
    fn snapshots_travel_as_text() {
        for text in ["10:10:", "10:20:10,14,15", "1:1:"] {
            let snapshot: Snapshot = text.parse().expect("valid");
            assert_eq!(snapshot.to_string(), text);
        }
        for bad in ["", "1", "a:b:", "1:2:x"] {
            assert!(bad.parse::<Snapshot>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_snapshot_does_not_see_what_runs_or_comes_later() {
        let snapshot: Snapshot = "10:20:10,14".parse().expect("valid");
        assert!(snapshot.sees(9) && snapshot.sees(11) && snapshot.sees(19));
        assert!(!snapshot.sees(10) && !snapshot.sees(14) && !snapshot.sees(20) && !snapshot.sees(99));
    }

    #[test]
    fn low_is_strictly_below_the_xid() {
        let mut marks = Marks::default();
        marks.add(Mark { xid: 10, seq: 100 });
        marks.add(Mark { xid: 20, seq: 200 });
        assert_eq!([marks.low(10), marks.low(11), marks.low(20), marks.low(21)], [0, 100, 100, 200]);
    }

    #[test]
    fn a_weaker_mark_is_left_out_and_a_stronger_one_replaces() {
        let mut marks = Marks::default();
        marks.add(Mark { xid: 10, seq: 100 });
        marks.add(Mark { xid: 12, seq: 90 });
        assert_eq!(marks.len(), 1);
        marks.add(Mark { xid: 9, seq: 100 });
        assert_eq!((marks.len(), marks.low(10)), (1, 100));
    }

    #[test]
    fn thinning_keeps_the_anchor_and_never_raises_low() {
        let mut marks = Marks::default();
        for n in 1..=500u64 {
            marks.add(Mark { xid: n * 10, seq: n as i64 * 100 });
        }
        let before = marks.clone();
        marks.thin(1_005);
        assert!(marks.len() < before.len());
        assert_eq!(marks.low(1_005), before.low(1_005));
        for xid in 0..6_000 {
            assert!(marks.low(xid) <= before.low(xid));
        }
        assert_eq!(marks.low(9_999), before.low(9_999));
        for n in 501..=2_000u64 {
            marks.add(Mark { xid: n * 10, seq: n as i64 * 100 });
            marks.thin(1_005);
            assert!(marks.len() <= MARKS_KEPT + 2, "{}", marks.len());
        }
    }

    #[test]
    fn catching_up_ends_at_the_position_with_the_target_as_snapshot() {
        let s: Snapshot = "5:9:5".parse().expect("valid");
        let n: Snapshot = "12:12:".parse().expect("valid");
        let full = Position::new(50, s.clone()).after_full_late_page(n.clone(), 20);
        assert!(full.has_handled(20, 5) && !full.has_handled(21, 5) && full.has_handled(50, 4));
        let step = full.after_catch_up(30);
        assert!(step.has_handled(30, 5) && !step.has_handled(31, 5));
        assert_eq!(step.after_catch_up(50), Position::new(50, n));
    }
}
