//! What a lane has read and not yet settled.
//!
//! Pages are decided event by event, in any order, and settled page by page from the front: the settled
//! prefix never runs past an undecided event (F26). The window also remembers which keys have an
//! undelivered event *in memory*: what the database cannot tell a page that was read before that
//! event's settlement committed.

use super::batch::{Batch, Origin, Pending, Tag};
use super::keys::{Keys, Wanted};
use crate::event::StoredEvent;
use crate::mutation::{Mutation, active};
use crate::sink::{Message, Ordering};
use crate::store::{Death, Deferral, Reason, Settlement};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

#[derive(Debug, Default)]
struct PageInHand {
    number: u64,
    events: usize,
    bytes: usize,
    /// Events without a decision, those in flight included.
    open: usize,
    /// Events to publish, in order.
    waiting: Batch,
    deferred: Vec<(StoredEvent, Deferral)>,
    dead: Vec<(StoredEvent, Death)>,
    delivered: bool,
}

#[derive(Debug, Default)]
struct BlockedKey {
    /// The newest page that defers something of this key.
    page: u64,
    /// Set once that is settled: pages up to this number were read before the settlement.
    until_page: Option<u64>,
}

/// The window of one lane.
#[derive(Debug)]
pub(crate) struct Window {
    keys: Keys,
    pages: VecDeque<PageInHand>,
    blocked: FxHashMap<String, BlockedKey>,
    /// Whether a key was blocked since [`Window::hold_blocked`] looked.
    blocked_anew: bool,
    events: usize,
    bytes: usize,
    /// Deferred events in hand that wait to be published.
    due: Batch,
    due_in_flight: usize,
    /// Keys of which a deferred event went back to the store, with its index. Later ones of the key may be
    /// with the sink at that time.
    left_behind: FxHashMap<String, u32>,
    /// Destinations of deferred events that were in hand and went back unasked.
    dropped: Vec<String>,
    outcome: Settlement,
}

impl Window {
    pub(crate) fn new(ordering: Ordering) -> Self {
        Self {
            keys: Keys::new(ordering),
            pages: VecDeque::new(),
            blocked: FxHashMap::default(),
            blocked_anew: false,
            events: 0,
            bytes: 0,
            due: Batch::default(),
            due_in_flight: 0,
            left_behind: FxHashMap::default(),
            dropped: Vec::new(),
            outcome: Settlement::default(),
        }
    }

    pub(crate) fn events(&self) -> usize {
        self.events
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts a page in: none of its events is decided, or waits to be published yet.
    pub(crate) fn arrive(&mut self, number: u64, events: usize, bytes: usize) {
        self.events += events;
        self.bytes += bytes;
        let waiting = Batch::with_capacity(events);
        self.pages.push_back(PageInHand {
            number,
            events,
            bytes,
            open: events,
            waiting,
            ..PageInHand::default()
        });
    }

    /// An event of the newest page waits to be published.
    pub(crate) fn line_up(&mut self, pending: Pending) {
        if let Some(page) = self.pages.back_mut() {
            page.waiting.push(pending);
        }
    }

    /// Forgets keys whose settlement was committed before page `number` was read: the database answers
    /// for them now. Not while a page from before that is in hand: an event of it may come back from
    /// the sink as held.
    pub(crate) fn forget_blocked_before(&mut self, number: u64) {
        if !self.blocked.is_empty() {
            let oldest = self.pages.front().map_or(number, |page| page.number);
            self.blocked.retain(|_, key| key.until_page.is_none_or(|until| until >= oldest.min(number)));
        }
    }

    pub(crate) fn is_blocked(&self, key: &str) -> bool {
        !self.blocked.is_empty() && self.blocked.contains_key(key)
    }

    /// Puts aside waiting events whose key was blocked after they were read: an earlier one of it failed,
    /// so they must not be published from here any more.
    pub(crate) fn hold_blocked(&mut self) {
        if std::mem::take(&mut self.blocked_anew) {
            let blocked = &self.blocked;
            let is_held =
                |message: &Message| message.order_key().is_some_and(|key| blocked.contains_key(key));
            let held = take_waiting(&mut self.pages, is_held);
            self.put_aside(held, Reason::Held);
        }
    }

    /// Puts aside waiting events whose destination is out of reach, and what waits behind them.
    pub(crate) fn put_aside_closed(&mut self, is_closed: impl Fn(&str) -> bool) {
        let closed = take_waiting(&mut self.pages, |message| is_closed(&message.destination));
        self.put_aside(closed, Reason::Outage);
        self.hold_blocked();
    }

    fn put_aside(&mut self, waiting: Vec<Pending>, reason: Reason) {
        for pending in waiting {
            let deferral = pending.waits(reason, pending.in_turn());
            self.defer(pending, deferral);
        }
    }

    /// Takes the next events to publish. Deferred events have their own calls, so that they never starve
    /// fresh ones.
    pub(crate) fn take_batch(&mut self, most: usize, wanted: Wanted<'_>) -> Batch {
        let mut pick = self.keys.pick(most, wanted);
        for page in self.pages.iter_mut().filter(|page| !page.waiting.is_empty()) {
            if pick.is_full() {
                break;
            }
            pick.take(&mut page.waiting);
        }
        let batch = pick.batch;
        self.keys.begun(&batch);
        batch
    }

    /// Takes deferred events to publish.
    pub(crate) fn take_due(&mut self, most: usize) -> Batch {
        // Nobody is left who could come back behind one that went.
        if self.due_in_flight == 0 {
            self.left_behind.clear();
        }
        let mut pick = self.keys.pick(most, None);
        pick.take(&mut self.due);
        let batch = pick.batch;
        self.due_in_flight += batch.len();
        self.keys.begun(&batch);
        batch
    }

    pub(crate) fn keys(&mut self) -> &mut Keys {
        &mut self.keys
    }

    /// Whether a fresh event waits to be published.
    pub(crate) fn has_fresh(&self) -> bool {
        self.pages.iter().any(|page| !page.waiting.is_empty())
    }

    /// Whether something in hand waits to be published.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.due.is_empty() || self.has_fresh()
    }

    /// Deferred events that wait to be published or are with the sink.
    pub(crate) fn due_in_hand(&self) -> usize {
        self.due.len() + self.due_in_flight
    }

    pub(crate) fn add_due(&mut self, pending: Pending) {
        self.due.push(pending);
    }

    fn page(&mut self, number: u64) -> Option<&mut PageInHand> {
        let front = self.pages.front()?.number;
        // Numbers are consecutive but for empty pages that were never put in.
        let mut at = usize::try_from(number.checked_sub(front)?).ok()?.min(self.pages.len() - 1);
        while self.pages[at].number > number {
            at = at.checked_sub(1)?;
        }
        Some(&mut self.pages[at]).filter(|page| page.number == number)
    }

    pub(crate) fn delivered(&mut self, pending: &Pending) {
        match pending.tag.origin {
            Origin::Page(number) => {
                if let Some(page) = self.page(number) {
                    page.open -= 1;
                    page.delivered = true;
                }
            }
            Origin::Deferred => {
                self.due_in_flight -= 1;
                self.outcome.delivered.push(pending.message.stored.seq);
            }
        }
    }

    pub(crate) fn defer(&mut self, pending: Pending, deferral: Deferral) {
        match pending.tag.origin {
            Origin::Page(number) => self.defer_fresh(number, pending.message.stored, deferral),
            Origin::Deferred => {
                self.due_in_flight -= 1;
                self.drop_behind(&pending);
                self.defer_again(pending.message.stored.seq, deferral);
            }
        }
    }

    pub(crate) fn bury(&mut self, pending: Pending, death: Death) {
        match pending.tag.origin {
            Origin::Page(number) => self.bury_fresh(number, pending.message.stored, death),
            Origin::Deferred => {
                self.due_in_flight -= 1;
                if death.holds {
                    self.drop_behind(&pending);
                }
                self.bury_deferred(pending.message.stored.seq, death);
            }
        }
    }

    /// An event of a page is put aside.
    pub(crate) fn defer_fresh(&mut self, number: u64, stored: StoredEvent, deferral: Deferral) {
        self.block_behind(&stored, number, deferral.holds);
        if let Some(page) = self.page(number) {
            page.open -= 1;
            page.deferred.push((stored, deferral));
        }
    }

    /// An event of a page dies.
    pub(crate) fn bury_fresh(&mut self, number: u64, stored: StoredEvent, death: Death) {
        self.block_behind(&stored, number, death.holds);
        if let Some(page) = self.page(number) {
            page.open -= 1;
            page.dead.push((stored, death));
        }
    }

    /// What follows in the key of an event of this page waits, if it holds its key.
    fn block_behind(&mut self, stored: &StoredEvent, number: u64, holds: bool) {
        if let Some(key) = stored.event.key.as_ref().filter(|_| holds) {
            let entry = self.blocked.entry(key.clone()).or_default();
            entry.page = entry.page.max(number);
            entry.until_page = None;
            self.blocked_anew = true;
        }
    }

    /// A deferred event that stays as it is in the store.
    pub(crate) fn let_go(&mut self, pending: &Pending) {
        if pending.tag.origin == Origin::Deferred {
            self.due_in_flight -= 1;
            self.drop_behind(pending);
        }
    }

    /// A deferred event was not delivered: those of its key that came along with it stay where they are in
    /// the store, behind it. What waits in hand is dropped here, what is with the sink when it comes back.
    fn drop_behind(&mut self, pending: &Pending) {
        let Some(key) = pending.message.order_key() else { return };
        let is_behind =
            |tag: &Tag, message: &Message| tag.index >= pending.tag.index && message.order_key() == Some(key);
        let behind = self.due.extract(is_behind);
        let first = self.left_behind.entry(key.to_owned()).or_insert(pending.tag.index);
        *first = pending.tag.index.min(*first);
        self.dropped.extend(behind.each().map(|pending| pending.message.destination));
    }

    /// Destinations that were not asked after all.
    pub(crate) fn take_dropped(&mut self) -> Vec<String> {
        std::mem::take(&mut self.dropped)
    }

    /// Deferred events in hand that are not with the sink.
    pub(crate) fn take_waiting_due(&mut self) -> Batch {
        std::mem::take(&mut self.due)
    }

    /// A deferred event that goes on waiting without having been with the sink.
    pub(crate) fn defer_again(&mut self, seq: i64, deferral: Deferral) {
        self.outcome.again.push((seq, deferral));
    }

    /// A deferred event that dies without having been published again.
    pub(crate) fn bury_deferred(&mut self, seq: i64, death: Death) {
        self.outcome.died.push((seq, death));
    }

    /// Back into the queue, in its place.
    pub(crate) fn put_back(&mut self, pending: Pending) {
        match pending.tag.origin {
            Origin::Page(number) => {
                self.blocked_anew |= pending.message.order_key().is_some_and(|key| self.is_blocked(key));
                if let Some(page) = self.page(number) {
                    page.waiting.put_back(pending);
                }
            }
            // One before it went back to the store, so this one must not be published first (G3).
            Origin::Deferred if self.is_left_behind(&pending) => {
                self.dropped.push(pending.message.destination.clone());
                self.let_go(&pending);
            }
            Origin::Deferred => {
                self.due_in_flight -= 1;
                self.due.put_back(pending);
            }
        }
    }

    fn is_left_behind(&self, pending: &Pending) -> bool {
        let first = pending.message.order_key().and_then(|key| self.left_behind.get(key));
        first.is_some_and(|first| pending.tag.index >= *first)
    }

    /// Whether a deferred event is decided.
    pub(crate) fn has_outcome(&self) -> bool {
        !self.outcome.delivered.is_empty() || !self.outcome.again.is_empty() || !self.outcome.died.is_empty()
    }

    /// Whether something can be settled, and how many events it would free.
    pub(crate) fn settleable(&self) -> Option<usize> {
        let freed: usize = self.complete().map(|page| page.events).sum();
        let pages = self.complete().next().is_some();
        (pages || self.has_outcome()).then_some(freed)
    }

    fn complete(&self) -> impl Iterator<Item = &PageInHand> {
        let pass_unsettled = active(Mutation::PassUnsettled);
        let before_ack = active(Mutation::SettleBeforeAck);
        self.pages.iter().take_while(move |page| {
            page.open == 0 || pass_unsettled || (before_ack && page.waiting.is_empty())
        })
    }

    /// Takes out what can be settled.
    pub(crate) fn take_settlement(&mut self) -> Settlement {
        let pages = self.complete().count();
        let mut settlement = std::mem::take(&mut self.outcome);
        for page in self.pages.iter_mut().take(pages) {
            settlement.through = Some(page.number);
            settlement.deferred.append(&mut page.deferred);
            settlement.dead.append(&mut page.dead);
        }
        settlement
    }

    /// A settlement was committed while reads up to `last_read` had been started.
    pub(crate) fn settled(&mut self, through: Option<u64>, last_read: u64) {
        let Some(through) = through else { return };
        while self.pages.front().is_some_and(|page| page.number <= through) {
            if let Some(page) = self.pages.pop_front() {
                self.events -= page.events;
                self.bytes -= page.bytes;
            }
        }
        for key in self.blocked.values_mut().filter(|key| key.page <= through && key.until_page.is_none()) {
            key.until_page = Some(last_read);
        }
    }

    /// For a drained shutdown: gives up every event that is not decided. Those of pages with a delivery are
    /// deferred, so that no acknowledgement stays unsettled (G8); pages nobody touched are simply read again
    /// by the next owner.
    pub(crate) fn abandon(&mut self) {
        let touched =
            |page: &PageInHand| page.delivered || !page.deferred.is_empty() || !page.dead.is_empty();
        let last = self.pages.iter().rposition(touched).map_or(0, |at| at + 1);
        for page in self.pages.drain(last..) {
            self.events -= page.events;
            self.bytes -= page.bytes;
        }
        self.due = Batch::default();
        let left = take_waiting(&mut self.pages, |_| true);
        self.put_aside(left, Reason::Drained);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && !self.has_outcome()
    }
}

fn take_waiting(pages: &mut VecDeque<PageInHand>, wanted: impl Fn(&Message) -> bool) -> Vec<Pending> {
    let waiting = pages.iter_mut().map(|page| &mut page.waiting);
    waiting.flat_map(|waiting| waiting.extract(|_, message| wanted(message)).each()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::batch::tests::pending;
    use super::*;

    fn next(window: &mut Window) -> Pending {
        window.take_due(1).each().next().expect("one is due")
    }

    #[test]
    fn g3_whoever_comes_back_behind_one_that_went_goes_too() {
        let mut window = Window::new(Ordering::Overlap);
        (1..=3).for_each(|index| window.add_due(pending(index)));
        let (first, second) = (next(&mut window), next(&mut window));
        window.let_go(&first);
        window.put_back(second);
        assert_eq!(window.due_in_hand(), 0, "the second and the third stay behind the first, in the store");
        // When they come due again, they are as free as any other.
        window.add_due(pending(4));
        let first = next(&mut window);
        window.put_back(first);
        assert_eq!(window.due_in_hand(), 1);
    }
}
