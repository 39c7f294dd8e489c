//! Publishing a call's messages and collecting their verdicts.
//!
//! A [`Flight`] is one call. It takes turns from the chain, sends what may go, and reads answers, until
//! every message has a verdict or time is up. There is no task and no timer for a single message: one
//! call is one future, woken for batches of turns and answers.
//!
//! Nothing is sent twice and nothing is sent on another connection than the one the call began with:
//! trying again is the relay's affair.

use super::link::{self, Link, Note, Registration};
use super::verdict::{self, Silence};
use super::{NatsConfig, examine};
use crate::BuildError;
use async_nats::header::{HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::{HeaderMap, PublishErrorKind, Subject, ToSubject};
use async_trait::async_trait;
use posthaste::sink::chain::{Call, Chain, Turn};
use posthaste::sink::{Capabilities, Finding, Message, Ordering, Sink, Verdict};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// How long a call waits for a connection before it gives its messages back. Longer than a reconnect
/// takes, short enough for an outage to be noticed.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// The last part of the delivery timeout, spent on finding out whether the server is still there.
const PING_WAIT_MAX: Duration = Duration::from_millis(500);

/// What tells a tombstone from an empty payload.
const TOMBSTONE: HeaderName = HeaderName::from_static("Posthaste-Tombstone");

/// Publishes to NATS JetStream.
#[derive(Debug)]
pub struct NatsSink {
    config: NatsConfig,
    link: Link,
    chain: Chain,
    window: Semaphore,
}

impl NatsSink {
    /// Checks the configuration and begins to connect. A server that is down is no error.
    pub fn start(config: &NatsConfig, name: &str) -> Result<Self, BuildError> {
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
impl Sink for NatsSink {
    fn capabilities(&self) -> Capabilities {
        // The server counts headers too: what is larger than this is refused for certain.
        let payload_bytes_max = self.link.current().map(|session| session.client().max_payload());
        Capabilities { ordering: Ordering::Overlap, dedupes: true, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let patience = self.config.delivery_timeout();
        let deadline = Instant::now() + patience;
        // Before the first wait: calls keep the order in which they were begun.
        let call = self.chain.enter(messages);
        let session = match self.link.session(CONNECT_WAIT.min(patience / 2)).await {
            Ok(session) => session,
            Err(failure) => return vec![Verdict::Retry(failure); messages.len()],
        };
        let mut flight = Flight::new(messages, call, session.register(), &self.window);
        let ping_wait = PING_WAIT_MAX.min(patience / 4);
        if timeout_at(deadline - ping_wait, flight.fly()).await.is_err() {
            let alive = flight.answers.session().answers_ping(ping_wait).await;
            flight.read_notes();
            flight.give_up(&Silence::Timeout { after_ms: self.config.delivery_timeout_ms, alive });
        }
        flight.verdicts()
    }

    async fn close(&self) {
        self.link.close().await;
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(&self.config, &self.link, destinations).await
    }

    async fn dedup_window(&self, destination: &str) -> Option<Duration> {
        examine::dedup_window(&self.link, destination).await
    }
}

#[derive(Clone, PartialEq)]
enum Fate {
    /// Not sent.
    Waiting,
    /// Sent; the answer is to come.
    Sent,
    Decided(Verdict),
}

struct Flight<'a> {
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
    /// The last one that was found good: most messages of a call have the same.
    subject: Option<Subject>,
    /// Where a reply subject is written before the client copies it.
    reply: String,
}

impl<'a> Flight<'a> {
    fn new(messages: &'a [Message], call: Call<'a>, answers: Registration, window: &'a Semaphore) -> Self {
        Self {
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
            subject: None,
            reply: String::new(),
        }
    }

    async fn fly(&mut self) {
        while self.undecided > 0 {
            self.await_news().await;
            self.take_turns();
            self.take_notes();
            self.send_ready().await;
        }
    }

    /// Waits for turns, for answers, or for room in the window.
    async fn await_news(&mut self) {
        let (window, wants_room) = (self.window, !self.ready.is_empty());
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
                    if self.fates.get(index) == Some(&Fate::Sent) {
                        self.decide(index, answer.verdict(&self.messages[index].destination));
                    }
                }
                Note::Denied(subject) => self.deny(&subject),
                Note::Ended(why) => self.give_up(&Silence::ConnectionLost(why.to_string())),
            }
        }
        self.notes = notes;
    }

    /// The server names the subject and not the message.
    fn deny(&mut self, subject: &str) {
        for index in 0..self.messages.len() {
            if self.fates[index] == Fate::Sent && self.messages[index].destination == subject {
                self.decide(index, verdict::denied(subject, self.answers.session().identity()));
            }
        }
    }

    fn give_up(&mut self, why: &Silence) {
        self.ready.clear();
        for index in 0..self.messages.len() {
            match self.fates[index] {
                Fate::Waiting => self.decide(index, why.verdict(false)),
                Fate::Sent => self.decide(index, why.verdict(true)),
                Fate::Decided(_) => {}
            }
        }
    }

    async fn send_ready(&mut self) {
        while !self.ready.is_empty() && self.has_permit() {
            let Some(index) = self.ready.pop_front() else { break };
            // From here on it may have left, also when this future is dropped.
            self.fates[index] = Fate::Sent;
            self.in_flight += 1;
            if let Err(verdict) = self.try_send(index).await {
                self.decide(index, verdict);
            }
        }
        self.window.add_permits(self.permits - self.in_flight);
        self.permits = self.in_flight;
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

    async fn try_send(&mut self, index: usize) -> Result<(), Verdict> {
        let message = &self.messages[index];
        let to = self.subject(&message.destination)?;
        let headers = headers(message)?;
        let payload = message.payload.clone().unwrap_or_default();
        self.answers.write_reply_subject(index, &mut self.reply);
        let client = self.answers.session().client();
        let sent = client.publish_with_reply_and_headers(to, Text(&self.reply), headers, payload).await;
        let subject = message.destination.as_str();
        sent.map_err(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => verdict::too_large(&error),
            PublishErrorKind::InvalidSubject => verdict::bad_subject(subject, "is not one for NATS"),
            PublishErrorKind::Send => {
                Silence::ConnectionLost("the connection was lost".into()).verdict(false)
            }
        })
    }

    fn subject(&mut self, name: &str) -> Result<Subject, Verdict> {
        if let Some(last) = self.subject.as_ref().filter(|last| last.as_str() == name) {
            return Ok(last.clone());
        }
        verdict::check_subject(name).map_err(|why| verdict::bad_subject(name, why))?;
        Ok(self.subject.insert(Subject::from(name)).clone())
    }

    /// Decides a message and tells those behind it.
    fn decide(&mut self, index: usize, verdict: Verdict) {
        self.in_flight -= usize::from(self.fates[index] == Fate::Sent);
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

/// A subject that is copied once. The client copies a string of its own too.
struct Text<'a>(&'a str);

impl ToSubject for Text<'_> {
    fn to_subject(&self) -> Subject {
        Subject::from(self.0)
    }
}

/// The headers of a message, or why it cannot travel.
fn headers(message: &Message) -> Result<HeaderMap, Verdict> {
    let mut headers = HeaderMap::new();
    let mut bad = None;
    message.each_header(|name, value| match (header_name(name), value.parse::<HeaderValue>()) {
        (Some(name), Ok(value)) => headers.append(name, value),
        _ => bad = Some(verdict::bad_header(name)),
    });
    if message.payload.is_none() {
        headers.insert(TOMBSTONE, "true");
    }
    // Last, so that no header of the event's own can change the dedup slot.
    headers.insert(NATS_MESSAGE_ID, message.id());
    bad.map_or(Ok(headers), Err)
}

/// The names that every message has are constants: no copy.
fn header_name(name: &str) -> Option<HeaderName> {
    Some(match name {
        "Message-ID" => const { HeaderName::from_static("Message-ID") },
        "type" => const { HeaderName::from_static("type") },
        "key" => const { HeaderName::from_static("key") },
        "time" => const { HeaderName::from_static("time") },
        "source" => const { HeaderName::from_static("source") },
        "content-type" => const { HeaderName::from_static("content-type") },
        other => other.parse().ok()?,
    })
}
