//! Fair shares of partitions. Pure.
//!
//! Nobody assigns. Each member sees the same roll and moves toward its share by itself: it takes what is free
//! up to the larger share, and gives back what is above it. Being wrong for a heartbeat costs nothing, for a
//! lease has one owner whatever everybody thinks. What is held stays where it is as long as the shares allow:
//! a member that only stands by may come and go, and nothing moves.

use super::lease::LeaseRoll;
use std::sync::Arc;

/// What to do after a heartbeat: take so many of the free ones, or give so many back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Move {
    Take(usize),
    Release(usize),
}

/// Decides from the roll. `mine` is how many this member holds of `total`.
pub(super) fn decide(me: &str, mine: usize, total: usize, roll: &LeaseRoll) -> Move {
    let members = roll.members.len().max(1);
    let (small, large, extra) = (total / members, total.div_ceil(members), total % members);
    // Those that say to hold a large share; so many of them may as there are extra ones, the first by name.
    let rich = |(name, held): &&(Arc<str>, usize)| {
        let held = if **name == *me { mine } else { *held };
        held >= large
    };
    let mut names: Vec<&str> = roll.members.iter().filter(rich).map(|(name, _)| &**name).collect();
    names.sort_unstable();
    if mine > large {
        return Move::Release(mine - large);
    }
    let rank = names.iter().position(|name| *name == me);
    if mine == large && large > small && rank.is_some_and(|rank| rank >= extra) {
        return Move::Release(mine - small);
    }
    let others = names.iter().filter(|name| **name != me).count();
    let most = if large == small || others < extra { large } else { small };
    Move::Take(most.saturating_sub(mine))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets members take turns until nobody moves; answers how many each has.
    fn settle(total: usize, mut held: Vec<usize>) -> Vec<usize> {
        for _ in 0..50 {
            let before = held.clone();
            for me in 0..held.len() {
                let name = |n: usize| -> Arc<str> { format!("m{n}").into() };
                let members = held.iter().enumerate().map(|(n, held)| (name(n), *held)).collect();
                let roll = LeaseRoll { members, ..LeaseRoll::default() };
                let free = total - held.iter().sum::<usize>();
                match decide(&name(me), held[me], total, &roll) {
                    Move::Take(most) => held[me] += most.min(free),
                    Move::Release(count) => held[me] -= count,
                }
            }
            if held == before {
                break;
            }
        }
        assert_eq!(held.iter().sum::<usize>(), total, "nothing stays free");
        held
    }

    #[test]
    fn shares_differ_by_one_at_most_from_any_start() {
        for total in 1..10 {
            for members in 1..5 {
                for start in 0..members {
                    let mut held = vec![0; members];
                    held[start] = total;
                    let shares = settle(total, held);
                    let (min, max) = (shares.iter().min(), shares.iter().max());
                    let differ = max.zip(min).map_or(0, |(max, min)| max - min);
                    assert!(differ <= 1, "{total} among {members}: {shares:?}");
                }
            }
        }
    }

    #[test]
    fn who_stands_by_moves_nothing() {
        assert_eq!(settle(1, vec![0, 0, 1]), [0, 0, 1]);
        assert_eq!(settle(2, vec![0, 1, 1]), [0, 1, 1]);
    }
}
