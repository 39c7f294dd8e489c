//! The sink, and a call: messages become requests and then verdicts.
//!
//! A message whose turn has come waits in the queue of its host. From there it becomes a request, and a
//! sender takes it. Only indices wait: just some requests are made ahead of the senders, and each host asks
//! for one slot at a time. Dropping the call ends its senders.

use super::client::endpoint::{Addresses, Endpoint};
use super::client::guard::{Guard, Guarded, Lookup, System};
use super::client::hosts::{Hosts, Slot};
use super::config::{HttpConfig, Words};
use super::reload::Reload;
use super::sender::{BODY_WAIT, CallContext, CallEnd, Job, JobOutcome, Queue, Sender};
use super::verdict::{self, NoResponse, Statuses};
use super::{entry, examine};
use crate::BuildError;
use crate::call::{Flight, Publisher};
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use posthaste::sink::chain::Chain;
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Sink, Verdict};
use posthaste::task::{Task, spawn};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::Instant;

/// The last part of the delivery timeout, for reading the body of a response that came late.
const LAST_PART: Duration = BODY_WAIT.saturating_add(Duration::from_millis(50));

/// The time after the senders' deadline at which messages for a silent host are given back. Requests whose
/// time was up by then, of other calls too, have told how their host is.
const GRACE: Duration = Duration::from_millis(20);

/// Requests of a host that are made ahead, for its senders to send while the relay does something else. Not
/// all requests are made ahead, because a request is larger than its message, and its timestamp is that of
/// the attempt.
const READY_MAX: usize = 256;

/// Posts to webhooks.
#[derive(Debug)]
pub struct HttpSink {
    pub(super) config: HttpConfig,
    pub(super) addresses: Addresses,
    pub(super) guard: Arc<Guard>,
    pub(super) reload: Reload,
    statuses: Arc<Statuses>,
    hosts: Hosts,
    chain: Chain,
}

impl HttpSink {
    /// Checks the configuration. Connections are made when there is something to send.
    pub fn start(config: &HttpConfig, name: &str) -> Result<Self, BuildError> {
        Self::with_lookup(config, name, Arc::new(System::default()))
    }

    fn with_lookup(config: &HttpConfig, name: &str, lookup: Arc<dyn Lookup>) -> Result<Self, BuildError> {
        let Words { addresses, guard, statuses } = config.words()?;
        let guard = Arc::new(guard);
        let resolver = Guarded { guard: Arc::clone(&guard), lookup };
        Ok(Self {
            reload: Reload::start(config, resolver, name)?,
            addresses,
            guard,
            statuses: Arc::new(statuses),
            chain: Chain::default(),
            hosts: Hosts::new(config.max_in_flight_per_host, config.options.max_in_flight),
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
        // This stands before the first wait, so that calls keep the order in which they were begun.
        let patience = self.config.options.delivery_timeout();
        let flight = Flight::new(messages, patience).in_turns(self.chain.enter(messages));
        let Some(current) = self.reload.current() else { return flight.refused(verdict::closed()) };
        // Each message is answered once, so the channel is bounded by the call.
        let (done, answers) = mpsc::unbounded_channel();
        let shared = Arc::new(CallContext {
            done,
            current,
            statuses: Arc::clone(&self.statuses),
            started: flight.started(),
            send_until: flight.send_until(),
            deadline: flight.deadline() - last_part(patience),
            is_over: RwLock::new(false),
        });
        let mut requests = Requests::new(self, Arc::clone(&shared), answers);
        let flying = pin!(flight.run(&mut requests));
        // This is dropped before the flight, because after the flight other calls have the turns of its keys.
        let _end = CallEnd(shared);
        flying.await
    }

    async fn close(&self) {
        self.reload.close();
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(self, destinations).await
    }
}

fn last_part(patience: Duration) -> Duration {
    LAST_PART.min(patience / 4)
}

/// The messages of one host that wait to become requests.
struct HostBacklog {
    queue: Arc<Queue>,
    messages: VecDeque<(usize, Arc<Endpoint>)>,
    /// Whether a slot is being asked for.
    asking: bool,
    /// The host's moves when the call began with it.
    moves: usize,
}

/// The publisher: messages go to senders by host, verdicts come back.
struct Requests<'a> {
    sink: &'a HttpSink,
    shared: Arc<CallContext>,
    answers: UnboundedReceiver<JobOutcome>,
    done: Vec<JobOutcome>,
    /// Destinations whose URL was found good, and the numbers of their queues. Most messages of a call go to
    /// a few destinations, and a URL is slow to parse.
    endpoints: FxHashMap<String, (Arc<Endpoint>, usize)>,
    numbers: FxHashMap<Arc<str>, usize>,
    waiting: Vec<HostBacklog>,
    slots: FuturesUnordered<BoxFuture<'static, (usize, Option<Slot>)>>,
    senders: FuturesUnordered<Task<usize>>,
}

impl Publisher for Requests<'_> {
    type Found = ();

    fn poll_answers(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> Poll<()> {
        let mut has_news = false;
        loop {
            let mut is_moving = self.poll_done(context, flight);
            while let Poll::Ready(Some((number, slot))) = self.slots.poll_next_unpin(context) {
                self.use_slot(number, slot, flight);
                is_moving = true;
            }
            while let Poll::Ready(Some(ended)) = self.senders.poll_next_unpin(context) {
                self.relieve(ended.ok(), flight);
                is_moving = true;
            }
            if !flight.may_send() {
                is_moving |= self.take_back(flight);
            }
            has_news |= is_moving;
            if !is_moving {
                return if has_news { Poll::Ready(()) } else { Poll::Pending };
            }
        }
    }

    fn send(&mut self, flight: &mut Flight<'_>) {
        while let Some(index) = flight.next() {
            self.line_up(index, flight);
        }
        (0..self.waiting.len()).for_each(|number| self.advance(number, flight));
    }

    /// Whether others have all slots of a host, and nothing was heard of it since. The host may be dead, and
    /// whoever waits behind them has to learn of it.
    fn is_waiting(&self, _: &Flight<'_>) -> bool {
        let is_silent = |waiting: &HostBacklog| waiting.asking && waiting.queue.host.moves() == waiting.moves;
        let is_behind = |waiting: &HostBacklog| !waiting.messages.is_empty() && is_silent(waiting);
        Instant::now() < self.shared.deadline + GRACE && self.waiting.iter().any(is_behind)
    }

    fn question_time(&self, patience: Duration) -> Duration {
        last_part(patience).saturating_sub(GRACE)
    }

    /// No server is asked, because each host is another server and its senders have found out. Timers that
    /// fell behind go off together.
    fn question(&mut self, _: &Flight<'_>, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::task::yield_now())
    }

    fn withdraw(&mut self) -> Vec<usize> {
        let jobs = self.waiting.iter().flat_map(|waiting| waiting.queue.withdraw(|_| true));
        jobs.map(|job| job.index).collect()
    }

    fn silence(&self, _: usize, message: &Message, is_sent: bool, (): &()) -> Verdict {
        let destination = message.destination.as_str();
        let Some((endpoint, number)) = self.endpoints.get(destination) else { return Verdict::Held };
        // The sender is too busy with what comes to look at the clock.
        if is_sent {
            return NoResponse::timeout(&endpoint.origin, self.shared.started.elapsed()).verdict();
        }
        // A failure of its host is its own. Without one, others had the slots, and the message is not to
        // blame.
        let failure = self.waiting[*number].queue.host.failed_since(self.shared.started, destination);
        failure.map_or(Verdict::Held, |failure| verdict::not_tried(&failure))
    }
}

impl<'a> Requests<'a> {
    fn new(sink: &'a HttpSink, shared: Arc<CallContext>, answers: UnboundedReceiver<JobOutcome>) -> Self {
        Self {
            sink,
            shared,
            answers,
            done: Vec::new(),
            endpoints: FxHashMap::default(),
            numbers: FxHashMap::default(),
            waiting: Vec::new(),
            slots: FuturesUnordered::new(),
            senders: FuturesUnordered::new(),
        }
    }

    fn poll_done(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let polled = self.answers.poll_recv_many(context, &mut done, usize::MAX);
        let mut last = None;
        for JobOutcome { index, queue, verdict } in done.drain(..) {
            flight.decide(index, verdict);
            if last != Some(queue) {
                last = Some(queue);
                self.advance(queue, flight);
            }
        }
        self.done = done;
        polled.is_ready()
    }

    /// Puts a message into the queue of its host.
    fn line_up(&mut self, index: usize, flight: &mut Flight<'_>) {
        let destination = flight.messages()[index].destination.as_str();
        if !self.endpoints.contains_key(destination) {
            match self.find(destination) {
                Ok(found) => drop(self.endpoints.insert(destination.to_owned(), found)),
                Err(verdict) => return flight.decide(index, verdict),
            }
        }
        if let Some((endpoint, number)) = self.endpoints.get(destination) {
            self.waiting[*number].messages.push_back((index, Arc::clone(endpoint)));
        }
    }

    fn find(&mut self, destination: &str) -> Result<(Arc<Endpoint>, usize), Verdict> {
        let url = self.sink.addresses.find(destination).map_err(verdict::bad_url)?;
        let literal = self.sink.guard.check_literal(&url);
        literal.map_err(|forbidden| NoResponse::forbidden(&forbidden).verdict())?;
        let endpoint = Arc::new(Endpoint::new(destination, &url).map_err(verdict::bad_url)?);
        let number = self.number(&endpoint.origin);
        Ok((endpoint, number))
    }

    fn number(&mut self, origin: &Arc<str>) -> usize {
        if let Some(number) = self.numbers.get(origin) {
            return *number;
        }
        let (number, host) = (self.waiting.len(), self.sink.hosts.host(origin));
        let (moves, queue) = (host.moves(), Queue::new(number, host, Arc::clone(origin)));
        self.numbers.insert(Arc::clone(origin), number);
        self.waiting.push(HostBacklog { queue, messages: VecDeque::new(), asking: false, moves });
        number
    }

    /// Makes requests and starts senders for them, as many as there are slots.
    fn advance(&mut self, number: usize, flight: &mut Flight<'_>) {
        self.leave_out(number, flight);
        if !flight.may_send() {
            return;
        }
        self.make(number, flight);
        while !self.waiting[number].asking && !self.waiting[number].queue.ready().is_empty() {
            let host = Arc::clone(&self.waiting[number].queue.host);
            match host.try_slot() {
                Some(slot) => self.start(number, slot),
                None => {
                    self.waiting[number].asking = true;
                    self.slots.push(Box::pin(async move { (number, host.slot().await) }));
                }
            }
        }
    }

    /// Decides the messages whose host has failed since the call began.
    fn leave_out(&mut self, number: usize, flight: &mut Flight<'_>) {
        let HostBacklog { queue, messages, .. } = &mut self.waiting[number];
        if queue.host.is_calm() {
            return;
        }
        let failure =
            |endpoint: &Endpoint| queue.host.failed_since(self.shared.started, &endpoint.destination);
        let jobs = queue.withdraw(|job| failure(&job.endpoint).is_some());
        let mut gone: Vec<_> = jobs.into_iter().map(|job| (job.index, failure(&job.endpoint))).collect();
        messages.retain(|(index, endpoint)| {
            let failed = failure(endpoint);
            let stays = failed.is_none();
            gone.extend((!stays).then_some((*index, failed)));
            stays
        });
        for (index, failure) in gone {
            flight.decide(index, failure.map_or(Verdict::Held, |failure| verdict::not_tried(&failure)));
        }
    }

    fn make(&mut self, number: usize, flight: &mut Flight<'_>) {
        let HostBacklog { queue, messages, .. } = &mut self.waiting[number];
        let mut room = READY_MAX.saturating_sub(queue.ready().len());
        while room > 0
            && let Some((index, endpoint)) = messages.pop_front()
        {
            match entry::request(&flight.messages()[index], &endpoint, &self.shared.current.keys) {
                Ok(request) => {
                    flight.sent(index);
                    queue.ready().push_back(Job { index, endpoint, request });
                    room -= 1;
                }
                Err(verdict) => flight.decide(index, verdict),
            }
        }
    }

    fn start(&mut self, number: usize, slot: Slot) {
        let queue = &self.waiting[number].queue;
        let Some(job) = queue.ready().pop_front() else { return };
        let sender = Sender::new(Arc::clone(&self.shared), Arc::clone(queue));
        self.senders.push(spawn("http sender", sender.run(job, slot)));
    }

    fn use_slot(&mut self, number: usize, slot: Option<Slot>, flight: &mut Flight<'_>) {
        self.waiting[number].asking = false;
        self.leave_out(number, flight);
        if let Some(slot) = slot.filter(|_| flight.may_send()) {
            self.start(number, slot);
        }
        self.advance(number, flight);
    }

    /// A sender has ended, and there may be more for its host. A sender that died does not say which host it
    /// was.
    fn relieve(&mut self, number: Option<usize>, flight: &mut Flight<'_>) {
        match number {
            Some(number) => self.advance(number, flight),
            None => (0..self.waiting.len()).for_each(|number| self.advance(number, flight)),
        }
    }

    /// It is too late to begin, so what no sender has taken waits for the next call. The answer is whether
    /// there was something.
    fn take_back(&mut self, flight: &mut Flight<'_>) -> bool {
        let mut any = false;
        for HostBacklog { queue, messages, .. } in &mut self.waiting {
            for job in queue.withdraw(|_| true) {
                any = true;
                flight.unsent(job.index);
                messages.push_back((job.index, job.endpoint));
            }
        }
        any
    }
}

#[cfg(test)]
mod tests;
