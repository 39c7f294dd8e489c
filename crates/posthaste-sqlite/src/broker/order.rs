//! Order by key over overlapping calls.
//!
//! A call is written as a whole or not at all, one after the other. What could break a key's order is a later
//! call that succeeds after an earlier one failed. So when a call fails, every call that was made before its
//! verdicts were handed out fails with it; the relay handles those verdicts before it makes another call, and
//! that one goes through again. Messages that are refused by themselves (too large, no topic) close their key
//! in the same way: what is behind them, in this or an overlapping call, is `Held`.

use posthaste::sink::{Failure, Message, Verdict};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Calls that are under way.
#[derive(Default)]
pub(super) struct CallOrder {
    table: Mutex<CallTable>,
}

#[derive(Default)]
struct CallTable {
    /// Calls so far: the number of the last one.
    entered: u64,
    live: FxHashSet<u64>,
    /// Calls that failed and have not handed out their verdicts.
    failing: FxHashSet<u64>,
    /// Calls up to this one must not be written any more.
    fence: u64,
    /// Keys that a live call could not send, and how many such calls there are.
    closed: FxHashMap<String, usize>,
}

/// A call that is under way. Dropping it says that its verdicts are handed out.
pub(super) struct OrderedCall<'a> {
    order: &'a CallOrder,
    pub(super) number: u64,
    closed: Vec<String>,
}

impl CallOrder {
    fn table(&self) -> MutexGuard<'_, CallTable> {
        // A panic elsewhere leaves the table whole: no code of others runs under the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call. `refuse` says what is wrong with a message by itself; `then` runs before another
    /// call can be registered, so that calls are queued in the order of their numbers. The verdicts that are
    /// known already come back with it.
    pub(super) fn enter(
        &self,
        messages: &[Message],
        refuse: impl Fn(&Message) -> Option<Failure>,
        then: impl FnOnce(u64, &[Option<Verdict>]),
    ) -> (OrderedCall<'_>, Vec<Option<Verdict>>) {
        let mut table = self.table();
        table.entered += 1;
        let number = table.entered;
        let mut closed: Vec<String> = Vec::new();
        let mut judge = |message: &Message| {
            let key = message.order_key();
            let is_closed = key.is_some_and(|key| {
                table.closed.contains_key(key) || closed.iter().any(|closed| closed == key)
            });
            if is_closed {
                return Some(Verdict::Held);
            }
            let failure = refuse(message)?;
            closed.extend(key.map(str::to_owned));
            Some(Verdict::Rejected(failure))
        };
        let verdicts: Vec<Option<Verdict>> = messages.iter().map(&mut judge).collect();
        for key in &closed {
            *table.closed.entry(key.clone()).or_default() += 1;
        }
        table.live.insert(number);
        then(number, &verdicts);
        (OrderedCall { order: self, number, closed }, verdicts)
    }

    /// Whether a call may be written: no earlier one has failed under its eyes.
    pub(super) fn may_write(&self, call: u64) -> bool {
        let table = self.table();
        table.failing.is_empty() && call > table.fence
    }

    /// Notes that calls failed, before anybody is told.
    pub(super) fn fail(&self, calls: impl IntoIterator<Item = u64>) {
        let mut table = self.table();
        for call in calls {
            if table.live.contains(&call) {
                table.failing.insert(call);
            } else {
                // Nobody waits for it any more; whatever was made since may have been made without knowing.
                table.fence = table.entered;
            }
        }
    }
}

impl Drop for OrderedCall<'_> {
    fn drop(&mut self) {
        let mut table = self.order.table();
        table.live.remove(&self.number);
        if table.failing.remove(&self.number) {
            table.fence = table.entered;
        }
        for key in self.closed.drain(..) {
            if let Some(count) = table.closed.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    table.closed.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste::event::{Event, StoredEvent, Timestamp};

    fn message(key: &str, payload: &'static str) -> Message {
        let event = Event::new("t", payload).with_key(key);
        let payload = event.payload.clone();
        let stored = StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(0), event, defect: None };
        Message {
            stored,
            destination: "t".to_owned(),
            payload,
            ordered: true,
            source: "".into(),
            envelope: Default::default(),
            partition_key: None,
        }
    }

    fn refuse_bad(message: &Message) -> Option<Failure> {
        (message.payload.as_deref() == Some(b"bad")).then(|| Failure::of_event("local.test", "bad"))
    }

    #[test]
    fn a_failed_call_takes_those_with_it_that_were_made_before_its_verdicts() {
        let order = CallOrder::default();
        let enter = || order.enter(&[message("k", "x")], refuse_bad, |_, _| {}).0;
        let (first, second) = (enter(), enter());
        assert!(order.may_write(first.number));
        order.fail([first.number]);
        let third = enter();
        assert!(!order.may_write(second.number) && !order.may_write(third.number));
        drop(first);
        assert!(!order.may_write(second.number) && !order.may_write(third.number));
        let fourth = enter();
        assert!(order.may_write(fourth.number));
        order.fail([second.number, third.number]);
        drop((second, third));
        assert!(!order.may_write(fourth.number), "made while they had not been answered");
        assert!(order.may_write(enter().number));
    }

    #[test]
    fn a_refused_message_closes_its_key_while_its_call_lives() {
        let order = CallOrder::default();
        let (first, verdicts) = order.enter(
            &[message("a", "x"), message("b", "bad"), message("b", "x"), message("a", "x")],
            refuse_bad,
            |_, _| {},
        );
        assert!(matches!(verdicts.as_slice(), [None, Some(Verdict::Rejected(_)), Some(Verdict::Held), None]));
        let (second, verdicts) = order.enter(&[message("b", "x"), message("a", "x")], refuse_bad, |_, _| {});
        assert_eq!(verdicts, [Some(Verdict::Held), None]);
        drop((first, second));
        let (_third, verdicts) = order.enter(&[message("b", "x")], refuse_bad, |_, _| {});
        assert_eq!(verdicts, [None]);
    }
}
