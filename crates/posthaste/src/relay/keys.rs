//! Which waiting events may go to the sink, by their key: as much of a key at once as the sink keeps in
//! order.

use super::batch::Batch;
use crate::sink::{Message, Ordering};
use rustc_hash::{FxHashMap, FxHashSet};

/// Which destinations a call may go to; all of them if there is none.
pub(crate) type Wanted<'a> = Option<&'a dyn Fn(&str) -> bool>;

#[derive(Debug)]
pub(crate) struct Keys {
    /// What the sink keeps of a key's order.
    ordering: Ordering,
    /// Keys with a call in flight, where the sink keeps no order over calls.
    busy: FxHashMap<String, usize>,
    /// Keys that the sink held while the failing call had not come back yet.
    /// By key: the newest call that was in flight then.
    shy: FxHashMap<String, u64>,
}

impl Keys {
    pub(crate) fn new(ordering: Ordering) -> Self {
        Self { ordering, busy: FxHashMap::default(), shy: FxHashMap::default() }
    }

    /// Makes up a call of at most so many events. `wanted` chooses destinations; what follows in the key of
    /// one that is not wanted waits too.
    pub(crate) fn pick<'a>(&'a self, most: usize, wanted: Wanted<'a>) -> Pick<'a> {
        Pick { keys: self, most, wanted, batch: Batch::default(), passed_over: FxHashSet::default() }
    }

    /// A call begins.
    pub(crate) fn begun(&mut self, batch: &Batch) {
        if self.ordering == Ordering::Overlap {
            return;
        }
        for key in batch.keys() {
            *self.busy.entry(key.to_owned()).or_default() += 1;
        }
    }

    /// A call came back: its keys are no longer in flight, and held keys may be looked at again. `oldest` is
    /// the oldest call that is still in flight.
    pub(crate) fn returned(&mut self, batch: &Batch, oldest: Option<u64>) {
        self.shy.retain(|_, newest| oldest.is_some_and(|oldest| oldest <= *newest));
        if self.ordering == Ordering::Overlap {
            return;
        }
        for key in batch.keys() {
            if let Some(count) = self.busy.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.busy.remove(key);
                }
            }
        }
    }

    /// The sink held this key for a call that has not come back. Which one is the sink's affair, and a call
    /// that was merely held too opens nothing: not again before all up to the newest have come back.
    pub(crate) fn be_shy(&mut self, key: &str, newest: u64) {
        self.shy.insert(key.to_owned(), newest);
    }
}

/// The events of a call that is being made up.
pub(crate) struct Pick<'a> {
    keys: &'a Keys,
    most: usize,
    wanted: Wanted<'a>,
    pub(crate) batch: Batch,
    /// What follows in these keys must wait.
    passed_over: FxHashSet<String>,
}

impl Pick<'_> {
    pub(crate) fn is_full(&self) -> bool {
        self.batch.len() >= self.most
    }

    /// Takes what may go, in order; the rest goes on waiting.
    pub(crate) fn take(&mut self, waiting: &mut Batch) {
        let keys = self.keys;
        let all = keys.ordering == Ordering::Overlap && keys.shy.is_empty() && self.wanted.is_none();
        let waited = std::mem::take(waiting);
        if all && self.batch.is_empty() && waited.len() <= self.most {
            self.batch = waited;
            return;
        }
        for pending in waited.each() {
            let goes = self.may_go(&pending.message);
            if goes { self.batch.push(pending) } else { waiting.push(pending) }
        }
    }

    fn may_go(&mut self, message: &Message) -> bool {
        let is_wanted = self.wanted.is_none_or(|wanted| wanted(&message.destination));
        if is_wanted && self.is_full() {
            return false;
        }
        let Some(key) = message.order_key() else { return is_wanted };
        let keys = self.keys;
        let is_open =
            !(keys.busy.contains_key(key) || keys.shy.contains_key(key) || self.passed_over.contains(key));
        // One of a key at a time, where the sink keeps no order: the next one of it waits for this one.
        if !is_wanted || !is_open || keys.ordering == Ordering::None {
            self.passed_over.insert(key.to_owned());
        }
        is_wanted && is_open
    }
}
