//! From which state new lanes start when their number changes. Pure.
//!
//! A cursor's meaning is a set: *handled = rows of its slots with `seq ≤ position` whose xid is visible in
//! its snapshot*. A new lane takes slots over from one or several old lanes, and may only call handled
//! what the old lane of each row had handled. So it starts from the intersection of those sets: the lowest
//! position, and a snapshot that shows only what all of theirs show. Where a new lane lies within one old
//! lane, nothing is sent twice; where it joins several, what the foremost of them had done more.
//!
//! An old lane that was catching up with a long transaction goes back to its snapshot: what it had handled
//! of its target is sent again.

use posthaste::cursor::Snapshot;

/// A lane as it was.
#[derive(Debug, Clone)]
pub(super) struct Old {
    pub(super) slots: (i16, i16),
    /// Position and snapshot; `None` for a lane without a receipt, which has handled nothing.
    pub(super) cursor: Option<(i64, Snapshot)>,
}

/// A lane's first state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) position: i64,
    pub(super) snapshot: Snapshot,
}

/// The states of `count` new lanes, each with an equal part of all slots.
pub(super) fn starts(old: &[Old], count: i32) -> Vec<Start> {
    (0..count).map(|lane| start(old, slots_of(lane, count))).collect()
}

/// First and last slot of a lane, by the same arithmetic as in SQL.
pub(super) fn slots_of(lane: i32, count: i32) -> (i16, i16) {
    let edge = |n: i32| crate::log::store::SLOTS * n / count;
    (edge(lane) as i16, (edge(lane + 1) - 1) as i16)
}

fn start(old: &[Old], (from, to): (i16, i16)) -> Start {
    let overlapping = || old.iter().filter(|old| old.slots.0 <= to && from <= old.slots.1);
    let cursors: Option<Vec<_>> = overlapping().map(|old| old.cursor.as_ref()).collect();
    // A lane that has handled nothing, or slots that belonged to nobody: everything is read again.
    let Some(cursors) = cursors.filter(|cursors| !cursors.is_empty()) else {
        return Start { position: 0, snapshot: Snapshot { xmin: FIRST, xmax: FIRST, running: Vec::new() } };
    };
    let position = cursors.iter().map(|(position, _)| *position).min().unwrap_or(0);
    Start { position, snapshot: intersection(cursors.iter().map(|(_, snapshot)| snapshot)) }
}

/// A snapshot that shows a transaction if and only if all of these do.
pub(super) fn intersection<'a>(snapshots: impl Iterator<Item = &'a Snapshot> + Clone) -> Snapshot {
    let xmin = snapshots.clone().map(|snapshot| snapshot.xmin).min().unwrap_or(FIRST);
    let xmax = snapshots.clone().map(|snapshot| snapshot.xmax).min().unwrap_or(FIRST);
    let listed = snapshots.flat_map(|snapshot| snapshot.running.iter().copied());
    // From the lowest xmax on, one of them shows nothing: no need to list it.
    let mut running: Vec<u64> = listed.filter(|xid| *xid < xmax).collect();
    running.sort_unstable();
    running.dedup();
    Snapshot { xmin, xmax, running }
}

/// The first xid that a transaction can have: a snapshot that ends here shows nothing.
const FIRST: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().expect("valid")
    }

    fn old(slots: (i16, i16), position: i64, text: &str) -> Old {
        Old { slots, cursor: Some((position, snapshot(text))) }
    }

    #[test]
    fn slots_are_covered_once() {
        for count in 1..=256 {
            let mut next = 0;
            for lane in 0..count {
                let (from, to) = slots_of(lane, count);
                assert_eq!(from, next, "{count} lanes");
                next = to + 1;
            }
            assert_eq!(next, 1024, "{count} lanes");
        }
    }

    /// Every pair of snapshots over eight transactions, against the definition.
    #[test]
    fn an_intersection_shows_what_all_show() {
        let all: Vec<Snapshot> = (3..8u64)
            .flat_map(|xmin| (xmin..=8).map(move |xmax| (xmin, xmax)))
            .flat_map(|(xmin, xmax)| {
                (0..1u64 << (xmax - xmin)).map(move |mask| {
                    let running = (xmin..xmax).filter(|xid| mask >> (xid - xmin) & 1 == 1).collect();
                    Snapshot { xmin, xmax, running }
                })
            })
            .collect();
        assert!(all.len() > 100);
        for a in &all {
            for b in &all {
                let both = intersection([a, b].into_iter());
                for xid in 3..10 {
                    assert_eq!(both.sees(xid), a.sees(xid) && b.sees(xid), "{a} and {b} at {xid}: {both}");
                }
                // What the server accepts as a snapshot.
                assert!(both.xmin <= both.xmax, "{both}");
                assert!(both.running.iter().all(|xid| (both.xmin..both.xmax).contains(xid)), "{both}");
            }
        }
    }

    #[test]
    fn a_lane_that_is_split_repeats_nothing() {
        let lanes = [old((0, 511), 100, "10:12:10"), old((512, 1023), 40, "8:9:8")];
        let starts = starts(&lanes, 4);
        assert_eq!(starts[0], Start { position: 100, snapshot: snapshot("10:12:10") });
        assert_eq!(starts[1], starts[0]);
        assert_eq!(starts[3], Start { position: 40, snapshot: snapshot("8:9:8") });
    }

    #[test]
    fn lanes_that_are_joined_start_from_what_all_have_handled() {
        let lanes = [old((0, 511), 100, "10:15:10,13"), old((512, 1023), 40, "9:12:9")];
        assert_eq!(starts(&lanes, 1), [Start { position: 40, snapshot: snapshot("9:12:9,10") }]);
    }

    #[test]
    fn a_lane_without_a_receipt_has_handled_nothing() {
        let lanes = [old((0, 511), 100, "10:15:"), Old { slots: (512, 1023), cursor: None }];
        let starts = starts(&lanes, 1);
        assert_eq!(starts[0].position, 0);
        assert!(!starts[0].snapshot.sees(3));
    }
}
