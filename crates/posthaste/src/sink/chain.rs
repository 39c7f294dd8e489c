//! Order by key for brokers whose messages are acknowledged one by one.
//!
//! NATS, HTTP and their like answer each message by itself, so a later message of a key could be
//! accepted while an earlier one still fails. A [`Chain`] lets a message go only when every earlier one
//! of its key has been delivered, over overlapping calls too; if one of them was not, those behind it
//! are `Held`. Keys are independent: a thousand keys keep a thousand messages in flight.
//!
//! A failed key stays closed until the *call* that held the failed message has returned its verdicts.
//! The relay handles those before it starts another call, so nothing of that key can slip past (G3).
//!
//! Which of two overlapping calls is the earlier one is decided by who entered first.
//!
//! All of it is one table under one lock, and a call learns of its turns in batches: one waker a call.
//! A channel for each message was simpler and cost two allocations and an atomic wake-up each, which at
//! 100,000 messages a second is what the broker's client itself costs.

use super::{Message, Verdict};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The keys that have messages with the broker.
#[derive(Default)]
pub struct Chain {
    table: Mutex<Table>,
}

/// What a message may do, once that is known. Every message has exactly one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Send it, then [`decide`](Call::decide).
    Go,
    /// One before it was not delivered: its verdict is `Held`, and there is nothing to decide.
    Held,
}

/// The messages of one call. Dropping it counts those that are still undecided as not delivered, and
/// reopens the keys that no other call holds.
pub struct Call<'a> {
    chain: &'a Chain,
    id: u64,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").finish_non_exhaustive()
    }
}

impl Chain {
    /// Registers a call's messages, in order, before the first of them is sent.
    pub fn enter(&self, messages: &[Message]) -> Call<'_> {
        Call { chain: self, id: self.table().enter(messages) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic elsewhere leaves the table whole: no code of others runs under the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call<'_> {
    /// Waits until at least one turn has come and appends those that have, by place in the call. Waits
    /// for ever when all have been handed out. Nothing is lost when the wait is dropped.
    pub async fn turns(&mut self, turns: &mut Vec<(usize, Turn)>) {
        std::future::poll_fn(|context| self.poll_turns(context, turns)).await;
    }

    /// The same as a poll, for callers that wait for other things too.
    pub fn poll_turns(&mut self, context: &mut Context<'_>, turns: &mut Vec<(usize, Turn)>) -> Poll<()> {
        let mut table = self.chain.table();
        // The entry lives as long as this handle.
        let Some(entry) = table.calls.get_mut(&self.id) else { return Poll::Pending };
        if entry.turns.is_empty() {
            entry.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        turns.append(&mut entry.turns);
        Poll::Ready(())
    }

    /// Lets the next message of the key go, or not. Said again, or said of a held message, it changes
    /// nothing.
    pub fn decide(&mut self, index: usize, verdict: &Verdict) {
        let mut woken = Vec::new();
        let seat = Seat { call: self.id, index };
        self.chain.table().settle(seat, *verdict == Verdict::Delivered, &mut woken);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut woken = Vec::new();
        self.chain.table().leave(self.id, &mut woken);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// A message: the call's number, which is never used again, and its place there.
#[derive(Clone, Copy)]
struct Seat {
    call: u64,
    index: usize,
}

struct Place {
    /// `None`: no order is asked for.
    key: Option<usize>,
    /// The next message of the key.
    next: Option<Seat>,
    settled: bool,
}

#[derive(Default)]
struct Entry {
    places: Vec<Place>,
    turns: Vec<(usize, Turn)>,
    waker: Option<Waker>,
}

struct Key {
    name: Arc<str>,
    tail: Tail,
    /// Places of all calls with this key.
    places: usize,
}

/// The last message of a key.
#[derive(Clone, Copy)]
enum Tail {
    Open(Seat),
    Delivered,
    Failed,
}

#[derive(Default)]
struct Table {
    numbers: FxHashMap<Arc<str>, usize>,
    /// By number. Numbers are used again, so that a key costs one look-up a message.
    keys: Vec<Option<Key>>,
    free: Vec<usize>,
    calls: FxHashMap<u64, Entry>,
    entered: u64,
}

impl Table {
    fn enter(&mut self, messages: &[Message]) -> u64 {
        self.entered += 1;
        let call = self.entered;
        let mut entry = Entry { places: Vec::with_capacity(messages.len()), ..Entry::default() };
        for (index, message) in messages.iter().enumerate() {
            let key = message.order_key().map(|name| self.number(name));
            let turn = key.map_or(Some(Turn::Go), |key| self.queue(key, Seat { call, index }, &mut entry));
            entry.turns.extend(turn.map(|turn| (index, turn)));
            entry.places.push(Place { key, next: None, settled: turn == Some(Turn::Held) });
        }
        self.calls.insert(call, entry);
        call
    }

    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let name: Arc<str> = name.into();
        let key = Some(Key { name: Arc::clone(&name), tail: Tail::Delivered, places: 0 });
        let number = self.free.pop().unwrap_or(self.keys.len());
        if number == self.keys.len() {
            self.keys.push(key);
        } else {
            self.keys[number] = key;
        }
        self.numbers.insert(name, number);
        number
    }

    /// Puts a message behind its key's last one; `entry` is its own call, which the table does not hold
    /// yet. `None`: its turn is not known.
    fn queue(&mut self, number: usize, seat: Seat, entry: &mut Entry) -> Option<Turn> {
        let key = self.keys[number].as_mut()?;
        key.places += 1;
        let before = match key.tail {
            // Those behind a failed one are failed as well, so the tail stays as it is.
            Tail::Failed => return Some(Turn::Held),
            Tail::Delivered => None,
            Tail::Open(before) => Some(before),
        };
        key.tail = Tail::Open(seat);
        let Some(before) = before else { return Some(Turn::Go) };
        let earlier = if before.call == seat.call { Some(entry) } else { self.calls.get_mut(&before.call) };
        earlier?.places[before.index].next = Some(seat);
        None
    }

    /// Settles a message and hands the turn on: to the next of its key, or, when it was not delivered,
    /// to all of them.
    fn settle(&mut self, mut seat: Seat, delivered: bool, woken: &mut Vec<Waker>) {
        loop {
            let Some(entry) = self.calls.get_mut(&seat.call) else { return };
            let place = &mut entry.places[seat.index];
            if std::mem::replace(&mut place.settled, true) {
                return;
            }
            let (Some(key), next) = (place.key, place.next) else { return };
            let Some(next) = next else {
                if let Some(key) = &mut self.keys[key] {
                    key.tail = if delivered { Tail::Delivered } else { Tail::Failed };
                }
                return;
            };
            // A call that was dropped has settled its messages itself.
            let Some(entry) = self.calls.get_mut(&next.call) else { return };
            if entry.places[next.index].settled {
                return;
            }
            entry.turns.push((next.index, if delivered { Turn::Go } else { Turn::Held }));
            woken.extend(entry.waker.take());
            if delivered {
                return;
            }
            seat = next;
        }
    }

    fn leave(&mut self, call: u64, woken: &mut Vec<Waker>) {
        let places = self.calls.get(&call).map_or(0, |entry| entry.places.len());
        for index in 0..places {
            self.settle(Seat { call, index }, false, woken);
        }
        let Some(entry) = self.calls.remove(&call) else { return };
        for number in entry.places.into_iter().filter_map(|place| place.key) {
            let Some(key) = &mut self.keys[number] else { continue };
            key.places -= 1;
            if key.places == 0 {
                let gone = self.keys[number].take();
                self.numbers.remove(&gone.map(|key| key.name).unwrap_or_default());
                self.free.push(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, StoredEvent, Timestamp};
    use crate::sink::Failure;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn message(key: Option<&str>) -> Message {
        let mut event = Event::new("t", "x");
        event.key = key.map(str::to_owned);
        let stored = StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(0), event, defect: None };
        Message { stored, destination: "t".into(), payload: None, ordered: true, source: "".into() }
    }

    fn enter<'a>(chain: &'a Chain, keys: &[&str]) -> Call<'a> {
        let messages: Vec<_> = keys.iter().map(|key| message((*key != "-").then_some(key))).collect();
        chain.enter(&messages)
    }

    fn turns(call: &mut Call<'_>) -> Vec<(usize, Turn)> {
        let mut turns = Vec::new();
        let _ = call.poll_turns(&mut Context::from_waker(Waker::noop()), &mut turns);
        turns.sort_by_key(|(index, _)| *index);
        turns
    }

    fn failed() -> Verdict {
        Verdict::Retry(Failure::of_event("x", "x"))
    }

    #[test]
    fn one_message_of_a_key_goes_at_a_time_and_keys_are_independent() {
        let chain = Chain::default();
        let mut call = enter(&chain, &["a", "a", "b", "-", "-"]);
        assert_eq!(turns(&mut call), [(0, Turn::Go), (2, Turn::Go), (3, Turn::Go), (4, Turn::Go)]);
        assert_eq!(turns(&mut call), []);
        call.decide(0, &Verdict::Delivered);
        assert_eq!(turns(&mut call), [(1, Turn::Go)]);
    }

    #[test]
    fn a_failure_holds_what_is_behind_it_in_later_calls_too_until_its_call_is_over() {
        let chain = Chain::default();
        let mut first = enter(&chain, &["a", "a", "b"]);
        let mut second = enter(&chain, &["a", "b"]);
        assert_eq!(turns(&mut first), [(0, Turn::Go), (2, Turn::Go)]);
        first.decide(0, &failed());
        assert_eq!(turns(&mut first), [(1, Turn::Held)]);
        assert_eq!(turns(&mut second), [(0, Turn::Held)]);
        let mut third = enter(&chain, &["a"]);
        assert_eq!(turns(&mut third), [(0, Turn::Held)]);
        drop((second, third));
        let mut fourth = enter(&chain, &["a"]);
        assert_eq!(turns(&mut fourth), [(0, Turn::Held)], "the failed message's call is still open");
        drop((first, fourth));
        assert_eq!(turns(&mut enter(&chain, &["a", "b"])), [(0, Turn::Go), (1, Turn::Go)]);
    }

    #[test]
    fn a_dropped_call_has_failed_and_leaves_nothing_behind() {
        let chain = Chain::default();
        let mut first = enter(&chain, &["a", "b"]);
        let mut second = enter(&chain, &["a"]);
        let mut third = enter(&chain, &["a", "b"]);
        first.decide(1, &Verdict::Delivered);
        drop(second);
        assert_eq!(turns(&mut third), [(0, Turn::Held), (1, Turn::Go)]);
        first.decide(0, &Verdict::Delivered);
        second = enter(&chain, &["a"]);
        assert_eq!(turns(&mut second), [(0, Turn::Held)]);
        drop((first, second, third));
        let table = chain.table();
        assert!(table.calls.is_empty() && table.numbers.is_empty());
        assert_eq!(table.free.len(), table.keys.len());
    }

    /// A waker that counts.
    #[derive(Default)]
    struct Bell(std::sync::atomic::AtomicUsize);

    impl std::task::Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    #[test]
    fn a_waiting_call_is_woken_by_another_calls_verdict_and_by_its_end() {
        let chain = Chain::default();
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(Arc::clone(&bell));
        for end in [false, true] {
            let mut first = enter(&chain, &["a"]);
            let mut second = enter(&chain, &["a"]);
            let mut got = Vec::new();
            assert!(second.poll_turns(&mut Context::from_waker(&waker), &mut got).is_pending());
            if end {
                drop(first);
            } else {
                first.decide(0, &Verdict::Delivered);
            }
            assert_eq!(bell.0.swap(0, std::sync::atomic::Ordering::SeqCst), 1);
            assert_eq!(turns(&mut second), [(0, if end { Turn::Held } else { Turn::Go })]);
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Enter(Vec<u8>),
        Decide(usize, bool),
        Drop(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => prop::collection::vec(0_u8..4, 1..6).prop_map(Step::Enter),
            8 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(which, ok)| Step::Decide(which, ok)),
            2 => any::<usize>().prop_map(Step::Drop),
        ]
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Fate {
        Waiting,
        Flying,
        Delivered,
        Failed,
    }

    proptest! {
        /// The rule itself, checked at every turn: nothing goes while an earlier message of its key
        /// whose call is open has not been delivered.
        #[test]
        fn nothing_overtakes(steps in prop::collection::vec(step(), 1..60)) {
            let chain = Chain::default();
            let mut calls: BTreeMap<u64, (Call<'_>, Vec<(u8, Fate)>)> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Enter(keys) => {
                        let names: Vec<_> = keys.iter().map(u8::to_string).collect();
                        let call = enter(&chain, &names.iter().map(String::as_str).collect::<Vec<_>>());
                        calls.insert(call.id, (call, keys.into_iter().map(|k| (k, Fate::Waiting)).collect()));
                    }
                    Step::Decide(which, ok) => {
                        let flying: Vec<_> = calls.iter().flat_map(|(id, (_, fates))| {
                            fates.iter().enumerate().filter(|(_, (_, f))| *f == Fate::Flying).map(|(i, _)| (*id, i))
                        }).collect();
                        if flying.is_empty() { continue }
                        let (id, index) = flying[which % flying.len()];
                        let (call, fates) = calls.get_mut(&id).expect("open");
                        call.decide(index, &if ok { Verdict::Delivered } else { failed() });
                        fates[index].1 = if ok { Fate::Delivered } else { Fate::Failed };
                    }
                    Step::Drop(which) => {
                        if calls.is_empty() { continue }
                        let id = *calls.keys().nth(which % calls.len()).expect("in range");
                        calls.remove(&id);
                    }
                }
                let ids: Vec<u64> = calls.keys().copied().collect();
                for id in ids {
                    for (index, turn) in turns(&mut calls.get_mut(&id).expect("open").0) {
                        let key = calls[&id].1[index].0;
                        let before = calls.range(..=id).flat_map(|(c, (_, fates))| {
                            fates.iter().enumerate().filter(move |(i, _)| *c < id || *i < index)
                        }).filter(|(_, (k, _))| *k == key);
                        let clear = before.clone().all(|(_, (_, fate))| *fate == Fate::Delivered);
                        prop_assert!(clear || turn == Turn::Held, "message {index} of call {id} overtakes");
                        prop_assert_eq!(calls[&id].1[index].1, Fate::Waiting);
                        let fate = if turn == Turn::Go { Fate::Flying } else { Fate::Failed };
                        calls.get_mut(&id).expect("open").1[index].1 = fate;
                    }
                }
            }
            // Whatever is left comes to an end: no message waits for ever.
            while let Some((id, index)) = calls.iter().find_map(|(id, (_, fates))| {
                fates.iter().position(|(_, f)| *f == Fate::Flying).map(|i| (*id, i))
            }) {
                let (call, fates) = calls.get_mut(&id).expect("open");
                call.decide(index, &Verdict::Delivered);
                fates[index].1 = Fate::Delivered;
                for (call, fates) in calls.values_mut() {
                    for (index, turn) in turns(call) {
                        fates[index].1 = if turn == Turn::Go { Fate::Flying } else { Fate::Failed };
                    }
                }
            }
            prop_assert!(calls.values().all(|(_, fates)| fates.iter().all(|(_, f)| *f != Fate::Waiting)));
        }
    }
}
