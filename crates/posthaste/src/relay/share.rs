//! Fair shares: which free lanes to take, which of one's own to give back. Pure.
//!
//! Nobody assigns lanes. Each relay sees the same roll and moves toward its share by itself: it takes
//! free lanes up to the larger share, and gives back what is above it. Being wrong for a heartbeat costs
//! nothing, because a lane has one owner whatever everybody thinks.

use crate::store::{LaneId, LaneView, Roll};
use rustc_hash::FxHashMap;

/// What to do after a heartbeat.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    pub(crate) take: Vec<LaneId>,
    pub(crate) release: Vec<LaneId>,
}

/// Decides from the roll. `mine` are the lanes this relay holds.
pub(crate) fn moves(me: &str, mine: &[LaneId], roll: &Roll) -> Moves {
    let (total, relays) = (roll.lanes.len(), roll.relays.max(1));
    let (small, large) = (total / relays, total.div_ceil(relays));
    if mine.len() > large
        || (mine.len() == large && large > small && must_yield(me, large, total % relays, roll))
    {
        let keep = if mine.len() > large { large } else { small };
        // The highest lanes go: every relay would choose the same ones.
        let mut release = mine.to_vec();
        release.sort();
        return Moves { take: Vec::new(), release: release.split_off(keep) };
    }
    // A lane that is ours by the roll but not in hand was lost to a crash of the server: nobody else
    // would touch it before it expires.
    let free = roll.lanes.iter().filter(|lane| lane.is_free || lane.owner.as_deref() == Some(me));
    let free = free.filter(|lane| !mine.contains(&lane.id));
    // The larger share is for so many and no more: whoever yielded one must not take it back before
    // the relay it was meant for has seen it.
    let others = rich(large, roll).iter().filter(|name| **name != me).count();
    let most = if large == small || others < total % relays { large } else { small };
    let take = free.take(most.saturating_sub(mine.len())).map(|lane| lane.id.clone()).collect();
    Moves { take, release: Vec::new() }
}

/// Of the relays that hold a large share, only `allowed` may: the last by name yield, and only while
/// somebody has less than a small share.
fn must_yield(me: &str, large: usize, allowed: usize, roll: &Roll) -> bool {
    rich(large, roll).iter().position(|name| *name == me).is_some_and(|rank| rank >= allowed)
}

/// Those that hold a large share, by name.
fn rich(large: usize, roll: &Roll) -> Vec<&str> {
    let mut owned: FxHashMap<&str, usize> = FxHashMap::default();
    for owner in roll.lanes.iter().filter_map(owner) {
        *owned.entry(owner).or_default() += 1;
    }
    let mut rich: Vec<&str> = owned.iter().filter(|(_, n)| **n >= large).map(|(name, _)| *name).collect();
    rich.sort_unstable();
    rich
}

fn owner(lane: &LaneView) -> Option<&str> {
    if lane.is_free { None } else { lane.owner.as_deref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Timestamp;
    use crate::store::Controls;

    fn lane(n: i16) -> LaneId {
        LaneId { sink: "s".into(), lane: n }
    }

    /// Lets relays take turns until nobody moves; each twice in a row, for its own release wakes it first.
    fn settle(lanes: i16, relays: &[&str], mut owners: Vec<Option<usize>>) -> Vec<usize> {
        owners.resize(lanes as usize, None);
        for _ in 0..50 {
            let before = owners.clone();
            for (r, name) in relays.iter().enumerate().flat_map(|relay| [relay, relay]) {
                let views = owners.iter().enumerate().map(|(n, owner)| LaneView {
                    id: lane(n as i16),
                    owner: owner.map(|o| relays[o].into()),
                    epoch: 1,
                    is_free: owner.is_none(),
                });
                let roll = Roll {
                    lanes: views.collect(),
                    relays: relays.len(),
                    now: Timestamp(0),
                    controls: Controls::default(),
                    refused: None,
                };
                let mine: Vec<LaneId> =
                    (0..lanes).filter(|n| owners[*n as usize] == Some(r)).map(lane).collect();
                let moves = moves(name, &mine, &roll);
                moves.take.iter().for_each(|id| owners[id.lane as usize] = Some(r));
                moves.release.iter().for_each(|id| owners[id.lane as usize] = None);
            }
            if owners == before {
                break;
            }
        }
        assert!(owners.iter().all(Option::is_some), "no lane stays free");
        (0..relays.len()).map(|r| owners.iter().filter(|o| **o == Some(r)).count()).collect()
    }

    #[test]
    fn shares_differ_by_one_at_most_from_any_start() {
        assert_eq!(settle(4, &["a", "b"], vec![Some(0); 4]), [2, 2]);
        assert_eq!(settle(1, &["a", "b"], vec![Some(1)]), [0, 1]);
        for lanes in 1..12 {
            for start in 0..3 {
                let shares = settle(lanes, &["a", "b", "c"], vec![Some(start); lanes as usize]);
                let (min, max) = (shares.iter().min(), shares.iter().max());
                assert!(max.zip(min).is_some_and(|(max, min)| max - min <= 1), "{lanes} lanes: {shares:?}");
            }
        }
    }
}
