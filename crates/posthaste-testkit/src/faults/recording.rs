//! A broker in memory that writes down every delivery, and sinks that speak to it.
//!
//! The [`Broker`] is what a test looks at from outside: what arrived, in which order, how often. What it
//! says of each message is programmable. A [`RecordingSink`] is one client of it, with the order by key
//! that a test asks for; it also checks that the relay keeps *its* part of that bargain: a sink without
//! any order must never hold two messages of one key, and one with order within a call must never see
//! a key in two calls at once.

use super::{Dice, Fault, Faults, Op};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste::sink::chain::{Chain, Turn};
use posthaste::sink::{Capabilities, Failure, Message, Ordering, Sink, Verdict};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use uuid::Uuid;

/// One message that arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Event id.
    pub id: Uuid,
    /// Key.
    pub key: Option<String>,
    /// Number in the log. A real broker does not know it.
    pub seq: i64,
    /// Address.
    pub destination: String,
    /// Headers as they travelled.
    pub headers: Vec<(String, String)>,
    /// Payload.
    pub payload: Option<Bytes>,
    /// Which client brought it.
    pub by: Arc<str>,
}

/// What the broker does with one message.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Takes it and says so.
    Deliver,
    /// Takes it twice and says so.
    DeliverTwice,
    /// Takes it and says something else: a dropped acknowledgement.
    DeliverBut(Verdict),
    /// Does not take it.
    Refuse(Verdict),
    /// Does not take it, and never answers.
    Hang,
}

/// A message that a client brings to the broker.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// The message.
    pub message: &'a Message,
    /// How often its event has been offered, this time included.
    pub times: u32,
    /// The client.
    pub by: &'a Arc<str>,
}

type Judge = dyn Fn(Offer<'_>) -> Reply + Send + Sync;

#[derive(Default)]
struct DeliveryLog {
    deliveries: Vec<Delivery>,
    offers: HashMap<Uuid, u32>,
    violations: Vec<String>,
    judge: Option<Arc<Judge>>,
}

/// The broker. Shared by clones.
#[derive(Clone, Default)]
pub struct Broker {
    log: Arc<Mutex<DeliveryLog>>,
}

impl Broker {
    /// A broker that takes everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn log(&self) -> MutexGuard<'_, DeliveryLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Programs what it says.
    pub fn judge(&self, judge: impl Fn(Offer<'_>) -> Reply + Send + Sync + 'static) {
        self.log().judge = Some(Arc::new(judge));
    }

    /// Everything that arrived, in order.
    #[must_use]
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.log().deliveries.clone()
    }

    /// How often an event was offered.
    #[must_use]
    pub fn offered(&self, id: Uuid) -> u32 {
        self.log().offers.get(&id).copied().unwrap_or(0)
    }

    /// Where a relay broke its part of the order bargain.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.log().violations.clone()
    }

    /// What becomes of a message; `None`: nobody will ever know.
    fn offer(&self, message: &Message, by: &Arc<str>) -> Option<Verdict> {
        let (judge, times) = {
            let mut log = self.log();
            let times = log.offers.entry(message.stored.event.id).or_insert(0);
            *times += 1;
            let times = *times;
            (log.judge.clone(), times)
        };
        let reply = judge.map_or(Reply::Deliver, |judge| judge(Offer { message, times, by }));
        let (copies, verdict) = match reply {
            Reply::Deliver => (1, Some(Verdict::Delivered)),
            Reply::DeliverTwice => (2, Some(Verdict::Delivered)),
            Reply::DeliverBut(verdict) => (1, Some(verdict)),
            Reply::Refuse(verdict) => (0, Some(verdict)),
            Reply::Hang => (0, None),
        };
        let mut log = self.log();
        (0..copies).for_each(|_| log.deliveries.push(delivery(message, by)));
        verdict
    }
}

fn delivery(message: &Message, by: &Arc<str>) -> Delivery {
    let mut headers = Vec::new();
    message.each_header(|name, value| headers.push((name.to_owned(), value.to_owned())));
    Delivery {
        id: message.stored.event.id,
        key: message.stored.event.key.clone(),
        seq: message.stored.seq,
        destination: message.destination.clone(),
        headers,
        payload: message.payload.clone(),
        by: Arc::clone(by),
    }
}

/// One client of a [`Broker`].
pub struct RecordingSink {
    broker: Broker,
    name: Arc<str>,
    ordering: Ordering,
    chain: Chain,
    keys: Mutex<HashSet<String>>,
    latency: Mutex<(Dice, Duration)>,
    faults: Faults,
}

impl RecordingSink {
    /// A client that keeps this order by itself, and answers at once.
    #[must_use]
    pub fn new(broker: &Broker, name: &str, ordering: Ordering) -> Self {
        Self {
            broker: broker.clone(),
            name: name.into(),
            ordering,
            chain: Chain::default(),
            keys: Mutex::default(),
            latency: Mutex::new((Dice::new(0), Duration::ZERO)),
            faults: Faults::none(),
        }
    }

    /// Faults of single messages, below the order by key: whatever goes wrong, the sink keeps its word.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Each message takes up to this long on the way, and as long for the answer.
    #[must_use]
    pub fn with_latency(self, dice: Dice, max: Duration) -> Self {
        *self.latency.lock().unwrap_or_else(PoisonError::into_inner) = (dice, max);
        self
    }

    async fn travel(&self) {
        let delay = {
            let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
            let (dice, max) = &mut *latency;
            if max.is_zero() { Duration::ZERO } else { dice.up_to(*max) }
        };
        super::pause(delay).await;
    }

    async fn send(&self, message: &Message) -> Verdict {
        self.travel().await;
        let (fault, after) = self.faults.before(Op::Publish).await;
        if fault == Fault::Refuse {
            return Verdict::Retry(Failure::of_sink("fault.refused", "refused on purpose"));
        }
        let mut verdict = self.broker.offer(message, &self.name);
        if fault == Fault::Duplicate && verdict == Some(Verdict::Delivered) {
            verdict = self.broker.offer(message, &self.name);
        }
        let Some(verdict) = verdict else { return std::future::pending().await };
        self.travel().await;
        self.faults.after(fault, after).await;
        if fault == Fault::DoThenFail && verdict == Verdict::Delivered {
            return Verdict::Unknown(Failure::of_sink("fault.no_answer", "no answer, on purpose"));
        }
        verdict
    }

    /// Each when its turn comes; keys are independent.
    async fn send_chained(&self, messages: &[Message]) -> Vec<Verdict> {
        let mut call = self.chain.enter(messages);
        let mut verdicts = vec![Verdict::Held; messages.len()];
        let (mut undecided, mut turns) = (messages.len(), Vec::new());
        let mut flying = FuturesUnordered::new();
        while undecided > 0 {
            tokio::select! {
                biased;
                Some((index, verdict)) = flying.next(), if !flying.is_empty() => {
                    call.decide(index, &verdict);
                    verdicts[index] = verdict;
                    undecided -= 1;
                }
                () = call.turns(&mut turns) => {
                    undecided -= turns.iter().filter(|(_, turn)| *turn == Turn::Held).count();
                    let go = turns.drain(..).filter(|(_, turn)| *turn == Turn::Go);
                    flying.extend(go.map(|(index, _)| async move { (index, self.send(&messages[index]).await) }));
                }
            }
        }
        verdicts
    }

    /// One after another; behind a failure, the rest of its key is held.
    async fn send_call(&self, messages: &[Message]) -> Vec<Verdict> {
        let mut failed: HashSet<&str> = HashSet::new();
        let mut verdicts = Vec::with_capacity(messages.len());
        for message in messages {
            let key = message.order_key();
            let held = key.is_some_and(|key| failed.contains(key));
            let verdict = if held { Verdict::Held } else { self.send(message).await };
            if verdict != Verdict::Delivered {
                failed.extend(key);
            }
            verdicts.push(verdict);
        }
        verdicts
    }

    /// The keys of a call, after checking that the relay may send them now.
    fn enter<'a>(&'a self, messages: &'a [Message]) -> Entered<'a> {
        let mut entered = Entered { sink: self, keys: HashSet::new() };
        if self.ordering == Ordering::Overlap {
            return entered;
        }
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        for key in messages.iter().filter_map(Message::order_key) {
            let again = !entered.keys.insert(key);
            let elsewhere = !again && !keys.insert(key.to_owned());
            if elsewhere || (again && self.ordering == Ordering::None) {
                let note = format!("key {key} was with a sink of order {:?} twice at once", self.ordering);
                self.broker.log().violations.push(note);
            }
        }
        drop(keys);
        entered
    }
}

/// The keys of one call; gone with it, also when it is dropped half-way.
struct Entered<'a> {
    sink: &'a RecordingSink,
    keys: HashSet<&'a str>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut keys = self.sink.keys.lock().unwrap_or_else(PoisonError::into_inner);
        self.keys.iter().for_each(|key| {
            keys.remove(*key);
        });
    }
}

#[async_trait]
impl Sink for RecordingSink {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: self.ordering, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let _entered = self.enter(messages);
        match self.ordering {
            Ordering::Call => self.send_call(messages).await,
            Ordering::None => {
                futures_util::future::join_all(messages.iter().map(|message| self.send(message))).await
            }
            Ordering::Overlap => self.send_chained(messages).await,
        }
    }
}
