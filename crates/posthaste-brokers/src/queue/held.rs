//! What the messages in hand are acknowledged with. Pure.

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::Hash;

/// The messages of one reading that are in hand, by the number of their ticket. `K` is a message's place in
/// its queue, `R` what it is acknowledged with.
#[derive(Debug)]
pub(crate) struct HeldMessages<K, R> {
    held: BTreeMap<i64, (K, R)>,
    /// The ticket of each message.
    tickets: FxHashMap<K, i64>,
    last: i64,
}

impl<K, R> Default for HeldMessages<K, R> {
    fn default() -> Self {
        Self { held: BTreeMap::new(), tickets: FxHashMap::default(), last: 0 }
    }
}

impl<K: Hash + Eq + Copy, R> HeldMessages<K, R> {
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Notes a message, and answers with the number of its ticket. `None`: it is in hand already, and is
    /// acknowledged by its newer delivery from now on.
    pub(crate) fn put(&mut self, place: K, reply: R) -> Option<i64> {
        let known = self.tickets.get(&place).and_then(|number| self.held.get_mut(number));
        if let Some((_, held)) = known {
            *held = reply;
            return None;
        }
        self.last += 1;
        self.tickets.insert(place, self.last);
        self.held.insert(self.last, (place, reply));
        Some(self.last)
    }

    /// Whether something in hand is acknowledged with this.
    pub(crate) fn has(&self, reply: &R) -> bool
    where
        R: PartialEq,
    {
        self.replies().any(|held| held == reply)
    }

    /// Takes a message out of the hand.
    pub(crate) fn take(&mut self, number: i64) -> Option<R> {
        let (place, reply) = self.held.remove(&number)?;
        self.tickets.remove(&place);
        Some(reply)
    }

    /// Takes out everything.
    pub(crate) fn take_all(&mut self) -> Vec<R> {
        self.tickets.clear();
        std::mem::take(&mut self.held).into_values().map(|(_, reply)| reply).collect()
    }

    pub(crate) fn replies(&self) -> impl Iterator<Item = &R> {
        self.held.values().map(|(_, reply)| reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_comes_again_in_hand_is_one_with_a_newer_subject() {
        let mut held: HeldMessages<u64, &str> = HeldMessages::default();
        assert_eq!((held.put(7, "a"), held.put(9, "b")), (Some(1), Some(2)));
        assert_eq!(held.put(7, "c"), None);
        assert_eq!(held.len(), 2);
        assert_eq!(held.take(1), Some("c"));
        assert_eq!(held.take(1), None);
        // Settled, and back: another delivery with another ticket.
        assert_eq!(held.put(7, "d"), Some(3));
        assert_eq!(held.replies().copied().collect::<Vec<_>>(), ["b", "d"]);
        assert_eq!(held.take_all().len(), 2);
        assert_eq!(held.put(9, "e"), Some(4), "nothing is remembered of what was given back");
    }
}
