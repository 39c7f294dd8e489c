//! Publishing a call's messages and collecting their verdicts.
//!
//! A [`Flight`] is one call: one future, woken for bursts of turns and reports. It hands messages to the lines
//! that [`Order`] names, and ends when every message has a verdict or time is up. Then the line that holds
//! messages past their time is emptied, and what is still unanswered is looked into.

use super::cause;
use super::fleet::Fleet;
use super::line::{Line, Record, Refusal, Shared};
use super::order::{Call, LineId, News, Order, Seat};
use super::verdict::{self, Circumstances, Fault};
use super::{KafkaConfig, admin, examine, watch};
use crate::BuildError;
use async_trait::async_trait;
use posthaste::envelope;
use posthaste::sink::{Capabilities, Failure, Finding, Message, Ordering, Sink, Verdict};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::types::RDKafkaErrorCode;
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// A producer's queue is full of bytes: when to look again, if no report comes first.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// Headers of a message without any of its own.
const HEADERS: usize = 6;
/// A question is worth asking only with some time for the answer.
const INQUIRY_MIN: Duration = Duration::from_millis(50);
/// Topics that are asked about; more of them at once have one cause.
const INQUIRY_TOPICS_MAX: usize = 16;
/// Messages handed over before others may run.
const BURST: usize = 512;

/// Publishes to Apache Kafka.
#[derive(Debug)]
pub struct KafkaSink {
    config: KafkaConfig,
    identity: String,
    shared: Shared,
    fleet: Arc<Fleet>,
    _watch: Option<watch::Watch>,
}

impl KafkaSink {
    /// Checks the configuration and begins to connect. A broker that is down is no error.
    pub fn start(config: &KafkaConfig, name: &str) -> Result<Self, BuildError> {
        config.check()?;
        let shared = Shared {
            sink: name.into(),
            order: Arc::new(Order::default()),
            window: Arc::new(Semaphore::new(config.options.max_in_flight)),
            causes: Arc::default(),
        };
        let fleet = Arc::new(Fleet::start(config, name, shared.clone())?);
        let watch = watch::Watch::start(config, &fleet);
        Ok(Self { config: config.clone(), identity: config.identity(), shared, fleet, _watch: watch })
    }
}

#[async_trait]
impl Sink for KafkaSink {
    fn capabilities(&self) -> Capabilities {
        // Key and headers count too: what is larger than this is refused for certain.
        let payload_bytes_max = Some(self.config.message_bytes_max);
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let deadline = Instant::now() + self.config.options.delivery_timeout();
        // Before the first wait: calls keep the order in which they were begun.
        let call = self.shared.order.enter(messages);
        if self.fleet.is_closed() {
            let failure = Failure::of_sink("kafka.closed", "the sink was closed");
            return vec![Verdict::Retry(failure); messages.len()];
        }
        let mut flight = Flight::new(self, messages, call, deadline);
        if timeout_at(deadline - self.config.inquest(), flight.fly()).await.is_err() {
            flight.stop();
            // Answers that are on their way, and all of them if the line could be emptied.
            let _ = timeout_at(deadline - self.config.inquest() / 2, flight.fly()).await;
        }
        let silent = flight.silent_topics();
        let causes = if silent.is_empty() { BTreeMap::new() } else { self.inquire(silent, deadline).await };
        flight.verdicts(&causes)
    }

    async fn close(&self) {
        self.fleet.close();
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(&self.config, &self.fleet, &self.shared.causes, destinations).await
    }
}

impl KafkaSink {
    /// Why these topics did not answer.
    async fn inquire(&self, topics: Vec<String>, deadline: Instant) -> BTreeMap<String, Failure> {
        let budget = deadline.saturating_duration_since(Instant::now()).max(INQUIRY_MIN);
        let asked = &topics[..topics.len().min(INQUIRY_TOPICS_MAX)];
        let settings = admin::settings(&self.config, asked, budget);
        let (found, settings) = tokio::join!(admin::partitions(&self.fleet, asked, budget), settings);
        // Whoever answers has let us in, and one broker of several that is away is not the whole sink's outage: so
        // complaints explain a silence only when nobody answers.
        let nobody = || cause::unreachable(&self.config, "no broker answers");
        let outage = || self.shared.causes.current(&self.config).unwrap_or_else(nobody);
        let wanted = |topic: &String| {
            let settings = settings.as_ref().ok()?.get(topic)?.as_ref().ok()?;
            Some(settings.min_insync_replicas)
        };
        let judge = |topic: &String| match found.get(topic) {
            Some(Ok(state)) => {
                cause::of_topic(topic, state, wanted(topic), self.config.options.delivery_timeout_ms)
            }
            Some(Err(code)) => cause::of_code(topic, *code, &self.identity),
            None if found.is_empty() => outage(),
            None => cause::of_silence(topic, self.config.options.delivery_timeout_ms),
        };
        topics.iter().map(|topic| (topic.clone(), judge(topic))).collect()
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Fate {
    /// Not with a producer.
    Waiting,
    /// With a producer; the report is to come.
    Sent(LineId),
    /// The producer gave it up without an answer.
    Silent,
    /// It was past its time when its line was emptied: why, the inquest says.
    Purged,
    Decided(Verdict),
}

impl Fate {
    fn line(&self) -> Option<LineId> {
        if let Self::Sent(line) = self { Some(*line) } else { None }
    }
}

struct Flight<'a> {
    sink: &'a KafkaSink,
    messages: &'a [Message],
    deadline: Instant,
    fates: Vec<Fate>,
    undecided: usize,
    /// May be handed over, when there is room.
    ready: VecDeque<(u32, LineId)>,
    /// Taken from the window and not used yet.
    permits: usize,
    /// The producer's queue was full.
    full: bool,
    /// Time is up: nothing more is handed over.
    stopped: bool,
    call: Call<'a>,
    line: Option<Arc<Line>>,
    /// The last one that was found good: most messages of a call have the same.
    topic: &'a str,
    news: Vec<(u32, News)>,
    sent: Vec<u32>,
}

impl<'a> Flight<'a> {
    fn new(sink: &'a KafkaSink, messages: &'a [Message], call: Call<'a>, deadline: Instant) -> Self {
        Self {
            sink,
            messages,
            deadline,
            fates: vec![Fate::Waiting; messages.len()],
            undecided: messages.len(),
            ready: VecDeque::new(),
            permits: 0,
            full: false,
            stopped: false,
            call,
            line: None,
            topic: "",
            news: Vec::new(),
            sent: Vec::new(),
        }
    }

    async fn fly(&mut self) {
        while self.undecided > 0 {
            self.await_news().await;
            self.take_news();
            self.send_ready();
        }
    }

    /// Waits for turns and reports, for room in the window, or for room in the producer's queue.
    async fn await_news(&mut self) {
        let window = Arc::clone(&self.sink.shared.window);
        let wants_room = !self.ready.is_empty() && self.permits == 0;
        let mut room = pin!(window.acquire());
        let mut pause = pin!(tokio::time::sleep(FULL_PAUSE));
        poll_fn(|context| {
            let mut news = self.call.poll_news(context, &mut self.news).is_ready();
            if wants_room && let Poll::Ready(Ok(permit)) = room.as_mut().poll(context) {
                permit.forget();
                self.permits += 1;
                news = true;
            }
            if self.full && pause.as_mut().poll(context).is_ready() {
                news = true;
            }
            // A burst was cut short: others have run now.
            if !self.full && self.permits > 0 && !self.ready.is_empty() {
                news = true;
            }
            if news { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn take_news(&mut self) {
        let mut all = std::mem::take(&mut self.news);
        for (index, news) in all.drain(..) {
            match news {
                News::Go(line) if !self.stopped => self.ready.push_back((index, line)),
                News::Go(_) => {}
                News::Held => self.set(index, Verdict::Held),
                News::Delivered => self.set(index, Verdict::Delivered),
                News::Failed { fault, .. } if fault.is_silence() => self.give_up(index, Fate::Silent),
                News::Failed { fault, .. } if fault.is_nobodys() && self.is_overdue(index) => {
                    self.give_up(index, Fate::Purged);
                }
                News::Failed { fault, sent, line } => {
                    let verdict = self.judge(index, fault, sent, line);
                    self.set(index, verdict);
                }
            }
        }
        self.news = all;
    }

    fn judge(&self, index: u32, fault: Fault, sent: bool, line: LineId) -> Verdict {
        let at = Circumstances {
            topic: &self.messages[index as usize].destination,
            identity: &self.sink.identity,
            alone: self.sink.fleet.is_trial(line),
            sent,
        };
        verdict::of_fault(fault, at)
    }

    /// Hands over what may go, as long as there is room.
    fn send_ready(&mut self) {
        self.full = false;
        for _ in 0..BURST {
            let Some((index, line)) = self.ready.front().copied() else { break };
            if matches!(self.fates[index as usize], Fate::Decided(_)) {
                self.ready.pop_front();
                continue;
            }
            if !self.has_permit() {
                break;
            }
            match self.try_send(index, line) {
                Ok(line) => {
                    self.permits -= 1;
                    self.fates[index as usize] = Fate::Sent(line);
                    self.sent.push(index);
                }
                Err(Refused::Full) => {
                    self.full = true;
                    break;
                }
                Err(Refused::Fault(fault)) => self.refuse(index, fault),
                Err(Refused::Verdict(verdict)) => {
                    self.refuse(index, Fault(RDKafkaErrorCode::InvalidTopic));
                    self.set(index, verdict);
                }
            }
            self.ready.pop_front();
        }
        self.call.sent(&mut self.sent);
        if self.ready.is_empty() {
            self.sink.shared.window.add_permits(std::mem::take(&mut self.permits));
        }
    }

    /// What its key has behind it must not go: heard before anything else is handed over.
    fn refuse(&mut self, index: u32, fault: Fault) {
        self.call.sent(&mut self.sent);
        self.call.refuse(index, fault);
        self.call.take_news(&mut self.news);
        self.take_news();
    }

    fn has_permit(&mut self) -> bool {
        if self.permits == 0 {
            let window = &self.sink.shared.window;
            // As many as are ready, or as there are.
            let wanted = self.ready.len().min(window.available_permits()).max(1);
            let Ok(permits) = window.try_acquire_many(wanted as u32) else { return false };
            permits.forget();
            self.permits = wanted;
        }
        true
    }

    fn try_send(&mut self, index: u32, line: LineId) -> Result<LineId, Refused> {
        let topic = self.messages[index as usize].destination.as_str();
        if topic != self.topic || topic.is_empty() {
            verdict::check_topic(topic).map_err(Refused::Verdict)?;
            self.topic = topic;
        }
        match self.hand_over(index, line) {
            // The line is gone, and another one takes its place: at the latest when it is asked for.
            Err(Refusal::Fault(fault)) if fault.is_nobodys() => {
                self.line = None;
                let _ = self.sink.fleet.line(line);
                let instead = self.call.reroute(index).ok_or(Refused::Fault(fault))?;
                Ok(self.hand_over(index, instead).map(|()| instead)?)
            }
            other => Ok(other.map(|()| line)?),
        }
    }

    fn hand_over(&mut self, index: u32, line: LineId) -> Result<(), Refusal> {
        if self.line.as_ref().is_none_or(|last| last.id() != line || last.is_retired()) {
            self.line = Some(self.sink.fleet.line(line).map_err(Refusal::Fault)?);
        }
        let Some(line) = &self.line else { return Ok(()) };
        let message = &self.messages[index as usize];
        let record = Record {
            topic: &message.destination,
            key: message.partition_key(),
            payload: message.payload.as_deref(),
            headers: headers(message),
        };
        line.send(Seat { call: self.call.id(), index }, record)
    }

    /// Time is up: the line that holds messages past their time is emptied, and their topics are on trial.
    fn stop(&mut self) {
        self.stopped = true;
        self.ready.clear();
        let overdue =
            |(fate, message): (&Fate, &'a Message)| Some((fate.line()?, message.destination.as_str()));
        let mut overdue: Vec<_> = self.fates.iter().zip(self.messages).filter_map(overdue).collect();
        overdue.sort_unstable();
        overdue.dedup();
        for (line, topic) in overdue {
            self.sink.shared.order.suspect(topic, Fault(RDKafkaErrorCode::MessageTimedOut));
            self.sink.fleet.overdue(line);
        }
    }

    fn silent_topics(&self) -> Vec<String> {
        let silent = |fate: &Fate| matches!(fate, Fate::Silent | Fate::Purged | Fate::Sent(_));
        let mut topics: Vec<_> = self
            .fates
            .iter()
            .zip(self.messages)
            .filter(|(fate, _)| silent(fate))
            .map(|(_, message)| message.destination.clone())
            .collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    fn is_overdue(&self, index: u32) -> bool {
        self.stopped && matches!(self.fates[index as usize], Fate::Sent(_))
    }

    fn give_up(&mut self, index: u32, fate: Fate) {
        self.undecided -= 1;
        self.fates[index as usize] = fate;
    }

    fn set(&mut self, index: u32, verdict: Verdict) {
        let fate = &mut self.fates[index as usize];
        if !matches!(fate, Fate::Decided(_) | Fate::Silent | Fate::Purged) {
            self.undecided -= 1;
        }
        *fate = Fate::Decided(verdict);
    }

    fn verdicts(mut self, causes: &BTreeMap<String, Failure>) -> Vec<Verdict> {
        let fates = std::mem::take(&mut self.fates);
        let outage = causes.values().find(|failure| failure.scope == posthaste::sink::Scope::Sink);
        let judge = |(fate, message): (Fate, &Message)| match fate {
            Fate::Decided(verdict) => verdict,
            // It waited for its turn or for room: only an outage of the whole sink is its affair.
            Fate::Waiting => outage.map_or(Verdict::Held, |failure| Verdict::Retry(failure.clone())),
            // Its topic is well: it was in bad company.
            Fate::Purged if causes.get(&message.destination).is_none_or(cause::is_unknown) => Verdict::Held,
            Fate::Silent | Fate::Purged | Fate::Sent(_) => match causes.get(&message.destination) {
                Some(failure) => Verdict::Unknown(failure.clone()),
                None => Verdict::Unknown(Failure::of_sink("kafka.timeout", "no answer in time")),
            },
        };
        fates.into_iter().zip(self.messages).map(judge).collect()
    }
}

enum Refused {
    Full,
    Fault(Fault),
    Verdict(Verdict),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full => Self::Full,
            Refusal::Fault(fault) => Self::Fault(fault),
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // Dropped before its end: what is unanswered is a ghost, and must not be one for ever.
        let mut lines: Vec<LineId> = self.fates.iter().filter_map(Fate::line).collect();
        lines.dedup();
        for line in lines {
            self.sink.fleet.expire(line, self.deadline.into_std());
        }
        self.sink.shared.window.add_permits(self.permits);
    }
}

fn headers(message: &Message) -> OwnedHeaders {
    let capacity = HEADERS + message.stored.event.headers.len();
    let mut headers = Some(OwnedHeaders::new_with_capacity(capacity));
    message.each_header_for(envelope::KAFKA_BINDING, |key, value| {
        headers = headers.take().map(|headers| headers.insert(Header { key, value: Some(value) }));
    });
    headers.unwrap_or_default()
}
