//! Events in hand, in the form in which a sink reads them.
//!
//! A sink reads a slice of messages. The relay knows more of each event: where it came from, how often it was
//! tried, its route. So a batch has two columns, from the page that it waits in to the verdicts: a page that
//! goes to the sink whole is handed on as it is, and comes back as it went.

use crate::route::Route;
use crate::sink::Message;
use crate::store::{Deferral, Due, Reason};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Where an event in hand came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The log, by page number.
    Page(u64),
    /// The deferred.
    Deferred,
}

/// What the relay knows of an event in hand, beside its message.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) origin: Origin,
    /// Its place in the page, or among the deferred: order is kept by it.
    pub(crate) index: u32,
    pub(crate) attempts: u32,
    pub(crate) route: Arc<Route>,
}

/// An event in hand.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) tag: Tag,
    pub(crate) message: Message,
}

impl Pending {
    /// Waits without a failed attempt, until this time.
    pub(crate) fn waits(&self, reason: Reason, due: Due) -> Deferral {
        let destination = self.message.destination.clone();
        Deferral::new(&self.tag.route, destination, self.tag.attempts, reason, due)
    }

    /// At once, but not before what is earlier in its key: such an event may still be in flight, undecided,
    /// while this one is put aside. By the time it is settled, so are they.
    pub(crate) fn in_turn(&self) -> Due {
        if self.message.order_key().is_some() { Due::Behind } else { Due::In(Duration::ZERO) }
    }
}

/// Events in order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tags: VecDeque<Tag>,
    messages: VecDeque<Message>,
}

impl Batch {
    pub(crate) fn with_capacity(events: usize) -> Self {
        Self { tags: VecDeque::with_capacity(events), messages: VecDeque::with_capacity(events) }
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(crate) fn push(&mut self, pending: Pending) {
        self.tags.push_back(pending.tag);
        self.messages.push_back(pending.message);
    }

    /// Back into its place.
    pub(crate) fn put_back(&mut self, pending: Pending) {
        let at = self.tags.partition_point(|other| other.index < pending.tag.index);
        self.tags.insert(at, pending.tag);
        self.messages.insert(at, pending.message);
    }

    /// Takes out what is wanted; the rest stays in order.
    pub(crate) fn extract(&mut self, wanted: impl Fn(&Tag, &Message) -> bool) -> Self {
        let mut taken = Self::default();
        if self.tags.iter().zip(&self.messages).any(|(tag, message)| wanted(tag, message)) {
            for pending in std::mem::take(self).each() {
                let to = if wanted(&pending.tag, &pending.message) { &mut taken } else { &mut *self };
                to.push(pending);
            }
        }
        taken
    }

    /// The keys whose order must be kept, of one event after the other.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.messages.iter().filter_map(Message::order_key)
    }

    pub(crate) fn destinations(&self) -> impl Iterator<Item = &str> {
        self.messages.iter().map(|message| message.destination.as_str())
    }

    /// What the sink reads.
    pub(crate) fn messages(&mut self) -> &[Message] {
        self.messages.make_contiguous()
    }

    /// The events one by one.
    pub(crate) fn each(self) -> impl Iterator<Item = Pending> {
        self.tags.into_iter().zip(self.messages).map(|(tag, message)| Pending { tag, message })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::event::{Event, Limits, StoredEvent, Timestamp};

    /// A deferred event of the only key there is.
    pub(in crate::relay) fn pending(index: u32) -> Pending {
        let (seq, event) = (i64::from(index), Event::new("topic", "payload").with_key("key"));
        let stored = StoredEvent { seq, slot: 0, appended_at: Timestamp(0), event, defect: None };
        let route = Arc::new(Route::everything_to("sink"));
        let message = route.encode(stored, &"service".into(), &Limits::default()).expect("a message");
        Pending { tag: Tag { origin: Origin::Deferred, index, attempts: 0, route }, message }
    }

    #[test]
    fn what_is_taken_out_comes_back_into_its_place() {
        let mut batch = Batch::with_capacity(6);
        (1..=6).for_each(|index| batch.push(pending(index)));
        let taken = batch.extract(|tag, _| tag.index % 3 == 1);
        assert_eq!((taken.len(), batch.len()), (2, 4));
        taken.each().for_each(|pending| batch.put_back(pending));
        let seqs: Vec<i64> = batch.messages().iter().map(|message| message.stored.seq).collect();
        assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
        assert!(batch.each().all(|pending| i64::from(pending.tag.index) == pending.message.stored.seq));
    }
}
