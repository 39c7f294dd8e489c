//! Publishing a call's messages and collecting their verdicts.
//!
//! A [`Flight`] is one call. A message waits for its turn in the chain, then in the queue of its host for a
//! slot, then for room among all requests; then it is a request. Only requests are futures of their own:
//! what waits is an entry in a queue, and each host's queue asks for one slot at a time. Dropping the call
//! drops its requests.
//!
//! Nothing is sent twice: trying again is the relay's affair. (The client itself repeats a request on a new
//! connection when the old one was closed before a byte of it was written, or when a server of HTTP/2 says
//! that it has not looked at it.)

use super::config::{HttpConfig, Words};
use super::deliver::{self, BODY_WAIT, Outcome};
use super::guard::{Guard, Lookup, System};
use super::hosts::{Host, Hosts, Room};
use super::kit::{Keeper, Kit};
use super::verdict::{self, Silence, Statuses};
use super::{address, examine};
use crate::BuildError;
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use posthaste::sink::chain::{Call, Chain, Turn};
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Sink, Verdict};
use reqwest::{Request, Url};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

/// The last part of the delivery timeout, for reading the body of an answer that came late.
const LAST_PART: Duration = BODY_WAIT.saturating_add(Duration::from_millis(50));

/// Posts to webhooks.
#[derive(Debug)]
pub struct HttpSink {
    pub(super) config: HttpConfig,
    pub(super) addresses: address::Addresses,
    pub(super) guard: Arc<Guard>,
    pub(super) keeper: Keeper,
    statuses: Statuses,
    chain: Chain,
    hosts: Hosts,
    window: Arc<Semaphore>,
}

impl HttpSink {
    /// Checks the configuration. Connections are made when there is something to send.
    pub fn start(config: &HttpConfig, name: &str) -> Result<Self, BuildError> {
        Self::with_lookup(config, name, Arc::new(System::default()))
    }

    pub(super) fn with_lookup(
        config: &HttpConfig,
        name: &str,
        lookup: Arc<dyn Lookup>,
    ) -> Result<Self, BuildError> {
        let Words { addresses, guard, statuses } = config.words()?;
        let guard = Arc::new(guard);
        Ok(Self {
            keeper: Keeper::start(config, Arc::clone(&guard), lookup, name)?,
            addresses,
            guard,
            statuses,
            chain: Chain::default(),
            hosts: Hosts::new(config.max_in_flight_per_host),
            window: Arc::new(Semaphore::new(config.max_in_flight)),
            config: config.clone(),
        })
    }
}

#[async_trait]
impl Sink for HttpSink {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        // Before the first wait: calls keep the order in which they were begun.
        let call = self.chain.enter(messages);
        let kit = match self.keeper.kit() {
            Ok(kit) => kit,
            Err(verdict) => return vec![verdict; messages.len()],
        };
        let mut flight = Flight::new(self, messages, call, kit);
        flight.fly().await;
        flight.verdicts()
    }

    async fn close(&self) {
        self.keeper.close();
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(self, destinations).await
    }
}

/// A request that came back.
struct Landed {
    index: usize,
    queue: usize,
    verdict: Verdict,
}

/// The messages of one host that wait for a slot.
struct Queue {
    host: Arc<Host>,
    origin: Arc<str>,
    waiting: VecDeque<(usize, Url)>,
    /// Whether a slot is being asked for.
    asking: bool,
}

struct Flight<'a> {
    sink: &'a HttpSink,
    messages: &'a [Message],
    verdicts: Vec<Option<Verdict>>,
    /// Those that became requests.
    sent: Vec<bool>,
    undecided: usize,
    call: Call<'a>,
    turns: Vec<(usize, Turn)>,
    kit: Arc<Kit>,
    started: Instant,
    deadline: Instant,
    /// Destinations whose URL was found good, and the queues of their hosts: most messages of a call go to few, and a URL
    /// is slow to read.
    places: FxHashMap<&'a str, (Url, usize)>,
    numbers: FxHashMap<Arc<str>, usize>,
    queues: Vec<Queue>,
    rooms: FuturesUnordered<BoxFuture<'a, (usize, Option<Room>)>>,
    requests: FuturesUnordered<BoxFuture<'a, Landed>>,
}

impl<'a> Flight<'a> {
    fn new(sink: &'a HttpSink, messages: &'a [Message], call: Call<'a>, kit: Arc<Kit>) -> Self {
        let (started, patience) = (Instant::now(), sink.config.delivery_timeout());
        Self {
            sink,
            messages,
            verdicts: vec![None; messages.len()],
            sent: vec![false; messages.len()],
            undecided: messages.len(),
            call,
            turns: Vec::new(),
            kit,
            started,
            deadline: started + patience - LAST_PART.min(patience / 4),
            places: FxHashMap::default(),
            numbers: FxHashMap::default(),
            queues: Vec::new(),
            rooms: FuturesUnordered::new(),
            requests: FuturesUnordered::new(),
        }
    }

    /// Until every message has its verdict. Requests end by themselves at the deadline, and what has not
    /// become one by then is given back.
    async fn fly(&mut self) {
        let mut late = std::pin::pin!(sleep_until(self.deadline));
        let mut is_late = false;
        while self.undecided > 0 {
            tokio::select! {
                biased;
                Some(landed) = self.requests.next() => self.land(landed),
                () = self.call.turns(&mut self.turns) => self.take_turns(),
                Some((queue, room)) = self.rooms.next() => self.use_room(queue, room),
                () = &mut late, if !is_late => {
                    is_late = true;
                    self.give_back();
                }
            }
        }
    }

    fn take_turns(&mut self) {
        let mut turns = std::mem::take(&mut self.turns);
        for (index, turn) in turns.drain(..) {
            match turn {
                Turn::Go => self.line_up(index),
                Turn::Held => self.set(index, Verdict::Held),
            }
        }
        self.turns = turns;
        (0..self.queues.len()).for_each(|queue| self.advance(queue));
    }

    /// Puts a message into the queue of its host.
    fn line_up(&mut self, index: usize) {
        if Instant::now() >= self.deadline {
            return self.decide(index, Verdict::Held);
        }
        let messages = self.messages;
        let destination = messages[index].destination.as_str();
        if !self.places.contains_key(destination) {
            match self.find(destination) {
                Ok(place) => drop(self.places.insert(destination, place)),
                Err(verdict) => return self.decide(index, verdict),
            }
        }
        if let Some((url, queue)) = self.places.get(destination) {
            self.queues[*queue].waiting.push_back((index, url.clone()));
        }
    }

    fn find(&mut self, destination: &str) -> Result<(Url, usize), Verdict> {
        let url = self.sink.addresses.find(destination).map_err(verdict::bad_url)?;
        let literal = self.sink.guard.check_literal(&url);
        literal.map_err(|forbidden| Silence::forbidden(&forbidden).verdict())?;
        let queue = self.queue(&address::origin(&url));
        Ok((url, queue))
    }

    fn queue(&mut self, origin: &str) -> usize {
        if let Some(number) = self.numbers.get(origin) {
            return *number;
        }
        let number = self.queues.len();
        let (host, origin) = (self.sink.hosts.host(origin), Arc::from(origin));
        self.numbers.insert(Arc::clone(&origin), number);
        self.queues.push(Queue { host, origin, waiting: VecDeque::new(), asking: false });
        number
    }

    /// Sends as much of a queue as there is room for, and asks for more.
    fn advance(&mut self, number: usize) {
        while !self.queues[number].waiting.is_empty() && !self.queues[number].asking {
            let (host, window) = (Arc::clone(&self.queues[number].host), &self.sink.window);
            match host.try_room(window) {
                Some(room) => self.send(number, room),
                None => {
                    self.queues[number].asking = true;
                    let window = Arc::clone(window);
                    self.rooms.push(Box::pin(async move { (number, host.room(window).await) }));
                }
            }
        }
    }

    fn use_room(&mut self, number: usize, room: Option<Room>) {
        self.queues[number].asking = false;
        if let Some(room) = room {
            self.send(number, room);
        }
        self.advance(number);
    }

    /// Makes a request of the first one in the queue that its host has not failed for in the meantime.
    fn send(&mut self, number: usize, room: Room) {
        while let Some((index, url)) = self.queues[number].waiting.pop_front() {
            let message = &self.messages[index];
            let failure = self.queues[number].host.failed_since(self.started, &message.destination);
            let made = match failure {
                Some(failure) => Err(verdict::not_tried(&failure)),
                None => deliver::request(&self.kit, message, url),
            };
            match made {
                Ok(request) => {
                    self.sent[index] = true;
                    return self.requests.push(self.request(index, number, request, room));
                }
                Err(verdict) => self.decide(index, verdict),
            }
        }
    }

    fn request(&self, index: usize, queue: usize, request: Request, room: Room) -> BoxFuture<'a, Landed> {
        let (kit, statuses, deadline) = (Arc::clone(&self.kit), &self.sink.statuses, self.deadline);
        let (host, message) = (Arc::clone(&self.queues[queue].host), &self.messages[index]);
        let origin = Arc::clone(&self.queues[queue].origin);
        Box::pin(async move {
            let sent = deliver::deliver(&kit, message, request, &origin, statuses, deadline);
            let (Outcome { verdict, failed }, destination) = (sent.await, &message.destination);
            // Before the slot is free: who gets it next must know.
            match failed {
                Some((reach, failure)) => host.failed(reach, destination, &failure),
                None => host.answered(destination),
            }
            drop(room);
            Landed { index, queue, verdict }
        })
    }

    fn land(&mut self, landed: Landed) {
        let Landed { index, queue, verdict } = landed;
        self.decide(index, verdict);
        self.advance(queue);
    }

    /// Time is up for what has not been sent. Its host's failure is its own; without one, others had the
    /// slots, and it is not to blame.
    fn give_back(&mut self) {
        for number in 0..self.queues.len() {
            let host = Arc::clone(&self.queues[number].host);
            for (index, _) in std::mem::take(&mut self.queues[number].waiting) {
                let failure = host.failed_since(self.started, &self.messages[index].destination);
                let verdict = failure.map_or(Verdict::Held, |failure| verdict::not_tried(&failure));
                self.decide(index, verdict);
            }
        }
        // Behind a message of another call.
        for index in 0..self.messages.len() {
            if !self.sent[index] && self.verdicts[index].is_none() {
                self.decide(index, Verdict::Held);
            }
        }
    }

    /// Decides a message and tells those behind it.
    fn decide(&mut self, index: usize, verdict: Verdict) {
        self.call.decide(index, &verdict);
        self.set(index, verdict);
    }

    fn set(&mut self, index: usize, verdict: Verdict) {
        if self.verdicts[index].is_none() {
            self.undecided -= 1;
            self.verdicts[index] = Some(verdict);
        }
    }

    fn verdicts(mut self) -> Vec<Verdict> {
        // All are decided when `fly` has ended.
        let verdicts = std::mem::take(&mut self.verdicts);
        verdicts.into_iter().map(|verdict| verdict.unwrap_or(Verdict::Held)).collect()
    }
}

#[cfg(test)]
mod tests;
