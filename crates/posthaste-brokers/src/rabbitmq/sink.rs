//! Publishing a call's messages and collecting their verdicts.
//!
//! A [`Flight`] is one call. It takes turns from the chain, hands parcels to the session, and reads answers,
//! until every message has a verdict or time is up. There is no task and no timer for a single message: one
//! call is one future, woken for batches of turns and answers.
//!
//! One channel keeps the order of publishes, so whole keys could travel in a row; but one of them may be
//! refused or come back alone while those behind it are stored. So a key has one message in flight, as
//! with every broker that answers message by message; many keys fill the window.
//!
//! After the half of its time a call sends nothing more: so what was sent has at least the other half for its answer, and
//! a message that is not confirmed says something about its destination. What was not sent then is given back as soon as
//! the rest is answered.
//!
//! Nothing is sent twice and nothing is sent on another connection than the one the call began with:
//! trying again is the relay's affair.

use super::link::{self, Link};
use super::message::pack;
use super::session::Registration;
use super::table::{Note, Parcel, Question};
use super::verdict::{self, Silence};
use super::{RabbitmqConfig, examine};
use crate::BuildError;
use async_trait::async_trait;
use posthaste::sink::chain::{Call, Chain, Turn};
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Sink, Verdict};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// How long a call waits for a connection before it gives its messages back. Longer than a reconnect
/// takes, short enough for an outage to be noticed.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// The last part of the delivery timeout, spent on finding out whether the broker is still there.
const PING_WAIT_MAX: Duration = Duration::from_millis(500);

/// Publishes to RabbitMQ.
#[derive(Debug)]
pub struct RabbitmqSink {
    config: RabbitmqConfig,
    link: Link,
    chain: Chain,
    window: Semaphore,
}

impl RabbitmqSink {
    /// Checks the configuration and begins to connect. A server that is down is no error.
    pub fn start(config: &RabbitmqConfig, name: &str) -> Result<Self, BuildError> {
        let servers = config.check()?;
        Ok(Self {
            link: link::start(config.clone(), servers, name),
            chain: Chain::default(),
            window: Semaphore::new(config.max_in_flight),
            config: config.clone(),
        })
    }
}

#[async_trait]
impl Sink for RabbitmqSink {
    fn capabilities(&self) -> Capabilities {
        // The broker tells its limit only to those who have passed it.
        let payload_bytes_max = self.link.current().and_then(|session| session.bytes_max());
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let (started, patience) = (Instant::now(), self.config.delivery_timeout());
        // Before the first wait: calls keep the order in which they were begun.
        let call = self.chain.enter(messages);
        let session = match self.link.session(CONNECT_WAIT.min(patience / 2)).await {
            Ok(session) => session,
            Err(failure) => return vec![Verdict::Retry(failure); messages.len()],
        };
        let (last_call, deadline) = (started + patience / 2, started + patience);
        let (answers, window) = (session.register(), &self.window);
        let mut flight = Flight::new(&self.config, messages, call, answers, window, last_call);
        let ping_wait = PING_WAIT_MAX.min(patience / 4);
        for until in [last_call, deadline - ping_wait] {
            // In time or not: what is left says.
            let _ = timeout_at(until, flight.fly()).await;
        }
        if flight.is_open() {
            let silence = flight.find_out(ping_wait, self.config.delivery_timeout_ms).await;
            flight.read_notes();
            flight.give_up(&silence);
        }
        flight.verdicts()
    }

    async fn close(&self) {
        self.link.close().await;
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(&self.config, &self.link, destinations).await
    }
}

#[derive(Clone, PartialEq)]
enum Fate {
    /// Waits for its turn, or for room.
    Waiting,
    /// With the session; the answer is to come.
    Submitted,
    Decided(Verdict),
}

struct Flight<'a> {
    config: &'a RabbitmqConfig,
    messages: &'a [Message],
    fates: Vec<Fate>,
    undecided: usize,
    /// Taken from the window: for each message in flight one, and what is not used yet.
    permits: usize,
    in_flight: usize,
    /// May be sent, when the window has room.
    ready: VecDeque<usize>,
    call: Call<'a>,
    answers: Registration,
    window: &'a Semaphore,
    turns: Vec<(usize, Turn)>,
    notes: Vec<Note>,
    /// Nothing is sent after this.
    last_call: Instant,
}

impl<'a> Flight<'a> {
    fn new(
        config: &'a RabbitmqConfig,
        messages: &'a [Message],
        call: Call<'a>,
        answers: Registration,
        window: &'a Semaphore,
        last_call: Instant,
    ) -> Self {
        Self {
            config,
            messages,
            fates: vec![Fate::Waiting; messages.len()],
            undecided: messages.len(),
            permits: 0,
            in_flight: 0,
            ready: VecDeque::new(),
            call,
            answers,
            window,
            turns: Vec::new(),
            notes: Vec::new(),
            last_call,
        }
    }

    /// Whether there are messages without a verdict.
    fn is_open(&self) -> bool {
        self.undecided > 0
    }

    fn may_send(&self) -> bool {
        Instant::now() < self.last_call
    }

    /// Until all is decided, or nothing is under way and nothing more may be sent. Nobody wakes it when the time for
    /// sending is over: whoever calls this does. It may be dropped and called again.
    async fn fly(&mut self) {
        while self.is_open() && (self.in_flight > 0 || self.may_send()) {
            self.await_news().await;
            self.take_turns();
            self.take_notes();
            self.send_ready();
        }
    }

    /// Waits for turns, for answers, or for room in the window.
    async fn await_news(&mut self) {
        let (window, wants_room) = (self.window, !self.ready.is_empty() && self.may_send());
        let mut room = pin!(window.acquire());
        poll_fn(|context| {
            let news = self.poll_news(context);
            if wants_room && let Poll::Ready(Ok(permit)) = room.as_mut().poll(context) {
                // Kept: given back to be taken again, it would go round among the waiting calls.
                permit.forget();
                self.permits += 1;
                return Poll::Ready(());
            }
            if news { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn poll_news(&mut self, context: &mut Context<'_>) -> bool {
        let turns = self.call.poll_turns(context, &mut self.turns).is_ready();
        let notes = self.answers.poll_notes(context, &mut self.notes).is_ready();
        turns || notes
    }

    fn take_turns(&mut self) {
        let mut turns = std::mem::take(&mut self.turns);
        for (index, turn) in turns.drain(..) {
            match turn {
                Turn::Go => self.ready.push_back(index),
                Turn::Held => self.set(index, Verdict::Held),
            }
        }
        self.turns = turns;
    }

    /// Reads what has come without waiting.
    fn read_notes(&mut self) {
        self.answers.take_notes(&mut self.notes);
        self.take_notes();
    }

    fn take_notes(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        for note in notes.drain(..) {
            match note {
                Note::Answer(index, answer) => {
                    if self.fates.get(index) == Some(&Fate::Submitted) {
                        // It was packed, so its destination is one.
                        let place = self.config.place(&self.messages[index].destination).unwrap_or_default();
                        let identity = self.answers.session().identity();
                        let verdict = answer.verdict(place.0, place.1, identity);
                        self.decide(index, verdict);
                    }
                }
                Note::Ended(why) => self.end(&why),
            }
        }
        self.notes = notes;
    }

    /// Whatever had left has been answered for before: the rest never did.
    fn end(&mut self, why: &Arc<str>) {
        self.ready.clear();
        let lost = Silence::ConnectionLost(Arc::clone(why));
        self.decide_rest(|_| lost.verdict(false));
    }

    /// Why time is up.
    async fn find_out(&self, wait: Duration, after_ms: u64) -> Silence {
        let session = self.answers.session();
        if let Some(reason) = session.blocked() {
            return Silence::Blocked { after_ms, reason };
        }
        let answer = session.ask(Question::Ping, wait).await;
        // A broker that blocks now has stopped listening before it said so.
        match session.blocked() {
            Some(reason) => Silence::Blocked { after_ms, reason },
            None => Silence::Timeout { after_ms, alive: answer != Err(None) },
        }
    }

    fn give_up(&mut self, why: &Silence) {
        self.ready.clear();
        // From here on nothing of this call is sent any more.
        let kept = self.answers.withdraw();
        let mut left: Vec<bool> = self.fates.iter().map(|fate| *fate == Fate::Submitted).collect();
        kept.into_iter().for_each(|index| left[index] = false);
        self.decide_rest(|index| why.verdict(left[index]));
    }

    fn decide_rest(&mut self, verdict: impl Fn(usize) -> Verdict) {
        for index in 0..self.messages.len() {
            if !matches!(self.fates[index], Fate::Decided(_)) {
                self.decide(index, verdict(index));
            }
        }
    }

    fn send_ready(&mut self) {
        let mut parcels = Vec::new();
        while !self.ready.is_empty() && self.may_send() && self.has_permit() {
            let Some(index) = self.ready.pop_front() else { break };
            let message = &self.messages[index];
            let place = self.config.place(&message.destination);
            let packed = place
                .map_err(|why| verdict::bad_destination(&message.destination, why))
                .and_then(|place| self.pack(message, index, place));
            match packed {
                Ok(parcel) => {
                    self.fates[index] = Fate::Submitted;
                    self.in_flight += 1;
                    parcels.push(parcel);
                }
                Err(verdict) => self.decide(index, verdict),
            }
        }
        self.window.add_permits(self.permits - self.in_flight);
        self.permits = self.in_flight;
        if !parcels.is_empty() {
            // From here on they may have left, also when this future is dropped.
            self.answers.submit(parcels.into_iter());
        }
    }

    fn pack(&self, message: &Message, index: usize, place: (&str, &str)) -> Result<Parcel, Verdict> {
        let session = self.answers.session();
        let parcel = pack(message, index, place, session.terms().frame_max)?;
        match session.bytes_max() {
            Some(max) if parcel.payload.len() > max => {
                Err(verdict::too_large(&format!("{} bytes, and it takes {max}", parcel.payload.len())))
            }
            _ => Ok(parcel),
        }
    }

    /// Whether there is room for one more, used before or taken now.
    fn has_permit(&mut self) -> bool {
        if self.permits > self.in_flight {
            return true;
        }
        let Ok(permit) = self.window.try_acquire() else { return false };
        permit.forget();
        self.permits += 1;
        true
    }

    /// Decides a message and tells those behind it.
    fn decide(&mut self, index: usize, verdict: Verdict) {
        self.in_flight -= usize::from(self.fates[index] == Fate::Submitted);
        self.call.decide(index, &verdict);
        self.set(index, verdict);
    }

    fn set(&mut self, index: usize, verdict: Verdict) {
        if !matches!(self.fates[index], Fate::Decided(_)) {
            self.undecided -= 1;
            self.fates[index] = Fate::Decided(verdict);
        }
    }

    fn verdicts(mut self) -> Vec<Verdict> {
        // A message is undecided only while `fly` runs.
        let fates = std::mem::take(&mut self.fates);
        fates
            .into_iter()
            .map(|fate| if let Fate::Decided(verdict) = fate { verdict } else { Verdict::Held })
            .collect()
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.window.add_permits(self.permits);
    }
}
