//! What a consumer has in hand of one partition. Pure.
//!
//! For brokers that keep one position for a partition. Deliveries go out in the order of their positions;
//! they are settled in any order; the **committed** position is the one before which nothing is open (F26,
//! F61). What is given back waits for its time, and nothing newer goes out before it: that is how order
//! survives a nack ([`NackOrder::Kept`](super::NackOrder::Kept)).
//!
//! Positions need not be dense: a broker that compacts or writes markers of its own leaves gaps. So the hand
//! counts what was delivered, not numbers.
//!
//! Time is whatever the caller measures delays with; the hand only compares.

use std::collections::BTreeMap;

/// One delivery that is not settled behind the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State<T> {
    /// With the consumer.
    Out,
    /// Acknowledged, but something before it is open.
    Done,
    /// Given back; it goes out again at this time.
    Back(T),
}

/// The deliveries of one partition under one epoch. `T` is a point in time.
#[derive(Debug, Clone)]
pub struct Hand<T> {
    /// The position to read from next.
    next: i64,
    open: BTreeMap<i64, Open<T>>,
    out: usize,
    back: usize,
}

#[derive(Debug, Clone, Copy)]
struct Open<T> {
    state: State<T>,
    /// How often it was given back.
    nacks: u32,
}

impl<T: Copy> Open<T> {
    fn due(&self) -> Option<T> {
        if let State::Back(due) = self.state { Some(due) } else { None }
    }
}

impl<T: Copy + Ord> Hand<T> {
    /// An empty hand that reads from this position on.
    #[must_use]
    pub fn new(next: i64) -> Self {
        Self { next, open: BTreeMap::new(), out: 0, back: 0 }
    }

    /// The position to read from next.
    #[must_use]
    pub fn next(&self) -> i64 {
        self.next
    }

    /// The position before which everything is settled: what may be committed.
    #[must_use]
    pub fn committed(&self) -> i64 {
        self.open.keys().next().copied().unwrap_or(self.next)
    }

    /// Deliveries with the consumer.
    #[must_use]
    pub fn out(&self) -> usize {
        self.out
    }

    /// Everything that is remembered: with the consumer, given back, or acknowledged ahead of the prefix.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Notes a message that goes out for the first time. Positions only grow.
    pub fn deliver(&mut self, position: i64) {
        debug_assert!(position >= self.next, "deliveries go forward");
        self.open.insert(position, Open { state: State::Out, nacks: 0 });
        self.out += 1;
        self.next = position + 1;
    }

    /// Steps over positions that hold nothing for the consumer.
    pub fn skip_to(&mut self, position: i64) {
        self.next = self.next.max(position);
    }

    /// Notes an acknowledgement. `false`: this position was never delivered. Said again it changes nothing,
    /// and neither does it for a message that was given back meanwhile.
    pub fn ack(&mut self, position: i64) -> bool {
        let Some(open) = self.open.get_mut(&position) else { return position < self.next };
        if open.state == State::Out {
            open.state = State::Done;
            self.out -= 1;
            self.forget_prefix();
        }
        true
    }

    /// Notes that a message was given back until `due`. `false`: this position was never delivered. One
    /// that is settled already stays so.
    pub fn nack(&mut self, position: i64, due: T) -> bool {
        let Some(open) = self.open.get_mut(&position) else { return position < self.next };
        if open.state == State::Out {
            *open = Open { state: State::Back(due), nacks: open.nacks.saturating_add(1) };
            self.out -= 1;
            self.back += 1;
        }
        true
    }

    /// Whether this position was acknowledged, before the prefix or ahead of it.
    #[must_use]
    pub fn is_acked(&self, position: i64) -> bool {
        self.open.get(&position).map_or(position < self.next, |open| open.state == State::Done)
    }

    /// When this position goes out again, if it was given back.
    #[must_use]
    pub fn due_at(&self, position: i64) -> Option<T> {
        self.open.get(&position).and_then(Open::due)
    }

    /// Positions that were given back, in order.
    pub fn given_back(&self) -> impl Iterator<Item = i64> {
        let back = self.open.iter().filter(|(_, open)| open.due().is_some());
        back.map(|(position, _)| *position).take(self.back)
    }

    /// Whether new messages may go out: nothing waits to go out again.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.back == 0
    }

    /// When the first of those that were given back goes out again: the lowest position decides.
    #[must_use]
    pub fn due(&self) -> Option<T> {
        if self.back == 0 {
            return None;
        }
        self.open.values().find_map(Open::due)
    }

    /// Positions that may go out again now, in order, at most so many. The first that is not due ends it.
    #[must_use]
    pub fn due_again(&self, now: T, limit: usize) -> Vec<i64> {
        if self.back == 0 {
            return Vec::new();
        }
        let mut due = Vec::new();
        for (position, open) in &self.open {
            match open.state {
                State::Back(at) if at > now => break,
                State::Back(_) if due.len() < limit => due.push(*position),
                _ => {}
            }
        }
        due
    }

    /// Notes that a message that was given back goes out again; answers how often it was.
    pub fn deliver_again(&mut self, position: i64) -> u32 {
        let Some(open) = self.open.get_mut(&position) else { return 0 };
        if let State::Back(_) = open.state {
            open.state = State::Out;
            self.back -= 1;
            self.out += 1;
        }
        open.nacks
    }

    /// Forgets a position that was given back and is gone from the broker meanwhile.
    pub fn drop_gone(&mut self, position: i64) {
        if let Some(Open { state: State::Back(_), .. }) = self.open.get(&position) {
            self.open.remove(&position);
            self.back -= 1;
            self.forget_prefix();
        }
    }

    fn forget_prefix(&mut self) {
        while let Some(first) = self.open.first_entry() {
            if first.get().state != State::Done {
                break;
            }
            first.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn hand_of(positions: &[i64]) -> Hand<u64> {
        let mut hand = Hand::new(positions[0]);
        positions.iter().for_each(|position| hand.deliver(*position));
        hand
    }

    #[test]
    fn f61_only_the_contiguous_prefix_is_committed() {
        let mut hand = hand_of(&[5, 6, 9, 10]);
        assert!(hand.ack(6) && hand.ack(10));
        assert_eq!(hand.committed(), 5);
        assert_eq!([5, 6, 9, 10, 11].map(|at| hand.is_acked(at)), [false, true, false, true, false]);
        assert!(hand.ack(5));
        assert_eq!(hand.committed(), 9, "the gap holds nothing");
        assert!(hand.ack(9) && hand.ack(9), "said again");
        assert_eq!((hand.committed(), hand.out(), hand.open()), (11, 0, 0));
        assert!(hand.ack(5), "settled long ago");
        assert!(!hand.ack(11), "never delivered");
    }

    #[test]
    fn a_nack_holds_back_what_is_newer_and_comes_again_in_order() {
        let mut hand = hand_of(&[1, 2, 3]);
        assert!(hand.nack(3, 20) && hand.nack(2, 50));
        assert!(!hand.is_clear());
        assert_eq!(hand.due(), Some(50), "the lowest position decides");
        assert_eq!(hand.given_back().collect::<Vec<_>>(), [2, 3]);
        assert_eq!([1, 2, 3].map(|position| hand.due_at(position)), [None, Some(50), Some(20)]);
        assert_eq!(hand.due_again(30, 10), Vec::<i64>::new(), "3 must not overtake 2");
        assert_eq!(hand.due_again(50, 10), [2, 3]);
        assert_eq!(hand.due_again(50, 1), [2]);
        assert_eq!(hand.deliver_again(2), 1);
        assert!(hand.ack(1) && hand.ack(2));
        assert_eq!(hand.committed(), 3);
        assert!(!hand.is_clear());
        hand.deliver_again(3);
        assert!(hand.is_clear() && hand.nack(3, 60));
        assert_eq!(hand.deliver_again(3), 2);
    }

    #[test]
    fn what_is_given_back_cannot_be_acknowledged_by_an_older_ticket() {
        let mut hand = hand_of(&[1]);
        assert!(hand.nack(1, 10) && hand.ack(1));
        assert_eq!((hand.committed(), hand.is_clear()), (1, false));
    }

    #[test]
    fn retention_may_take_what_was_given_back() {
        let mut hand = hand_of(&[1, 2]);
        assert!(hand.ack(2) && hand.nack(1, 10));
        hand.drop_gone(1);
        assert_eq!((hand.committed(), hand.is_clear(), hand.open()), (3, true, 0));
        hand.skip_to(9);
        assert_eq!((hand.next(), hand.committed()), (9, 9));
    }

    proptest! {
        /// F61: whatever is settled in whatever order, nothing open is ever below the committed position,
        /// and everything that is below it was acknowledged.
        #[test]
        fn the_committed_position_never_passes_an_open_delivery(
            acts in prop::collection::vec((0_i64..40, 0_u8..4), 1..200),
        ) {
            let mut hand = hand_of(&(0..40).collect::<Vec<_>>());
            let mut acked = BTreeSet::new();
            let mut given_back = BTreeSet::new();
            let mut before = 0;
            for (now, (position, act)) in (0_u64..).zip(acts) {
                match act {
                    0 => {
                        for again in hand.due_again(now, 3) {
                            hand.deliver_again(again);
                            given_back.remove(&again);
                        }
                    }
                    1 => {
                        hand.nack(position, now + 2);
                        if !acked.contains(&position) {
                            given_back.insert(position);
                        }
                    }
                    _ => {
                        hand.ack(position);
                        if !given_back.contains(&position) {
                            acked.insert(position);
                        }
                    }
                }
                let committed = hand.committed();
                prop_assert!(committed >= before);
                before = committed;
                prop_assert!((0..committed).all(|position| acked.contains(&position)));
                prop_assert!(!acked.contains(&committed));
                prop_assert_eq!(hand.out() + acked.len() + given_back.len(), 40);
                prop_assert_eq!(hand.is_clear(), given_back.is_empty());
            }
        }
    }
}
