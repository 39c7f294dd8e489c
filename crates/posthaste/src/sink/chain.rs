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
//! A channel for each message was simpler and cost four times as much (380 against 100 ns a message),
//! before anybody had been woken.

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
mod tests;
