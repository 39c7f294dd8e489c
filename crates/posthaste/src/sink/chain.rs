//! Order by key for brokers whose messages are acknowledged one by one.
//!
//! NATS, HTTP and their like answer each message by itself, so a later message of a key could be
//! accepted while an earlier one still fails. A [`Chain`] lets a message go only when every earlier one
//! of its key has been delivered, over overlapping calls too; if one of them was not, those behind it
//! are `Held`. Keys are independent: a thousand keys keep a thousand messages in flight.
//!
//! A failed key stays closed until the *call* that held the failed message has returned its verdicts.
//! The relay handles those before it starts another call, so nothing of that key can slip past (G3).

use super::{Message, Verdict};
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

#[derive(Clone, Copy, PartialEq)]
enum Link {
    Open,
    Delivered,
    Failed,
}

struct Tail {
    link: watch::Receiver<Link>,
    calls: usize,
}

/// The keys that have messages with the broker.
#[derive(Default)]
pub struct Chain {
    tails: Mutex<FxHashMap<String, Tail>>,
}

/// One message's place in its key's chain.
pub struct Place {
    before: Option<watch::Receiver<Link>>,
    mine: Option<watch::Sender<Link>>,
}

impl Place {
    /// Waits for the message before this one. `false`: it was not delivered, and this one is held.
    pub async fn turn(&mut self) -> bool {
        let Some(before) = &mut self.before else { return true };
        // A sender that vanished without a word was dropped with its call: not delivered.
        let link = before.wait_for(|link| *link != Link::Open).await.map_or(Link::Failed, |link| *link);
        link == Link::Delivered
    }

    /// Lets the next message of the key go, or not.
    pub fn decide(&mut self, verdict: &Verdict) {
        if let Some(mine) = self.mine.take() {
            let link = if *verdict == Verdict::Delivered { Link::Delivered } else { Link::Failed };
            mine.send_replace(link);
        }
    }
}

/// The chain entries of one call; dropping it reopens the keys that failed in this call.
pub struct Call<'a> {
    chain: &'a Chain,
    keys: Vec<String>,
}

impl Chain {
    fn tails(&self) -> MutexGuard<'_, FxHashMap<String, Tail>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call's messages, in order, before the first of them is sent.
    pub fn enter(&self, messages: &[Message]) -> (Call<'_>, Vec<Place>) {
        let mut tails = self.tails();
        let mut keys = Vec::new();
        let places = messages
            .iter()
            .map(|message| {
                let Some(key) = message.order_key() else { return Place { before: None, mine: None } };
                let (mine, link) = watch::channel(Link::Open);
                keys.push(key.to_owned());
                let before = match tails.get_mut(key) {
                    Some(tail) => {
                        tail.calls += 1;
                        Some(std::mem::replace(&mut tail.link, link))
                    }
                    None => {
                        tails.insert(key.to_owned(), Tail { link, calls: 1 });
                        None
                    }
                };
                Place { before, mine: Some(mine) }
            })
            .collect();
        (Call { chain: self, keys }, places)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut tails = self.chain.tails();
        for key in &self.keys {
            if let Some(tail) = tails.get_mut(key) {
                tail.calls -= 1;
                if tail.calls == 0 {
                    tails.remove(key);
                }
            }
        }
    }
}
