//! Whether everything fails: many messages of many keys, and not one success for a while.
//!
//! One message that fails is its own fault. A deployment that fails with every message is not the messages'
//! fault, and would bury a whole topic. `all_failing = "pause"` waits instead, as for a dependency that is
//! away, and its name is [`HANDLER`].

use crate::source::Delivery;
use rustc_hash::{FxHashSet, FxHasher};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The dependency that everything needs.
pub(crate) const HANDLER: &str = "handler";
/// One that a handler names so is another one: it has been away for some messages, not for all.
const HANDLERS_OWN: &str = "handler (its own)";
/// Nothing has succeeded for this long.
pub(crate) const WITHOUT_SUCCESS: Duration = Duration::from_secs(30);
/// So many messages have failed since then, at least.
pub(crate) const MESSAGES_MIN: usize = 20;
/// And they are of so many keys, at least.
pub(crate) const KEYS_MIN: usize = 5;

/// Failures since the last success. Hashes stand for messages and keys, no more of them than matter.
#[derive(Debug)]
pub(crate) struct Failing {
    succeeded_at: Instant,
    messages: FxHashSet<u64>,
    keys: FxHashSet<u64>,
    /// Everything failed, and nobody was left to probe: the next failure begins with the longest pause.
    pub(crate) is_known: bool,
}

/// A dependency's name, as a handler gave it.
pub(crate) fn own_name(given: &Arc<str>) -> Arc<str> {
    if **given == *HANDLER { HANDLERS_OWN.into() } else { Arc::clone(given) }
}

impl Failing {
    pub(crate) fn new(now: Instant) -> Self {
        let (messages, keys) = (FxHashSet::default(), FxHashSet::default());
        Self { succeeded_at: now, messages, keys, is_known: false }
    }

    /// A message failed, alone.
    pub(crate) fn failed(&mut self, delivery: &Delivery) {
        let (partition, message) = (delivery.partition(), &delivery.message);
        let place = hash((partition, delivery.position, &message.id));
        if self.messages.len() < MESSAGES_MIN {
            self.messages.insert(place);
        }
        if self.keys.len() < KEYS_MIN {
            self.keys.insert(message.key.as_ref().map_or(place, |key| hash((&partition.topic, key))));
        }
    }

    /// A message succeeded: not everything fails.
    pub(crate) fn succeeded(&mut self, now: Instant) {
        self.succeeded_at = now;
        self.forget();
    }

    /// What failed so far says nothing any more.
    pub(crate) fn forget(&mut self) {
        self.messages.clear();
        self.keys.clear();
        self.is_known = false;
    }

    /// Whether some have failed since the last success.
    pub(crate) fn is_some(&self) -> bool {
        !self.messages.is_empty()
    }

    /// When it can be said that everything fails, if enough messages have failed for it: from then on nothing
    /// will have succeeded for long enough.
    pub(crate) fn said_at(&self) -> Option<Instant> {
        let are_many = self.messages.len() >= MESSAGES_MIN && self.keys.len() >= KEYS_MIN;
        are_many.then(|| self.succeeded_at + WITHOUT_SUCCESS)
    }
}

fn hash(what: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Partition, Received, Ticket};
    use bytes::Bytes;

    fn delivery(position: i64, key: Option<&str>) -> Delivery {
        let key = key.map(|key| Bytes::copy_from_slice(key.as_bytes()));
        Delivery {
            ticket: Ticket { partition: Partition::new("orders", 0), epoch: 1, number: position },
            position: Some(position),
            redelivery: None,
            published_at: None,
            address: None,
            message: Received { key, ..Received::default() },
        }
    }

    #[tokio::test(start_paused = true)]
    async fn twenty_messages_of_five_keys_and_half_a_minute_make_it_everything() {
        let start = Instant::now();
        let mut failing = Failing::new(start);
        for position in 0..100 {
            failing.failed(&delivery(position, Some(&format!("k{}", position % 4))));
        }
        assert_eq!(failing.said_at(), None, "four keys are the fault of four keys");
        for _ in 0..100 {
            failing.failed(&delivery(0, Some("k4")));
        }
        assert_eq!(failing.said_at(), Some(start + WITHOUT_SUCCESS));
        let later = start + Duration::from_secs(7);
        failing.succeeded(later);
        assert!(failing.said_at().is_none() && !failing.is_some());
        for _ in 0..100 {
            (0..19).for_each(|position| failing.failed(&delivery(position, None)));
        }
        assert_eq!(failing.said_at(), None, "nineteen, again and again");
        failing.failed(&delivery(19, None));
        assert_eq!(failing.said_at(), Some(later + WITHOUT_SUCCESS), "without keys each is its own");
    }
}
