//! The sink itself, and a call's messages on their way through the producers.
//!
//! [`KeyOrder`] names the line that a message goes to, and [`Reports`] hands it over. When time is up, the
//! line that holds messages past their time is emptied, and the cause of the silence is looked for.

use super::cause::{self, Causes};
use super::client::{admin, watch};
use super::entry::record;
use super::order::{KeyOrder, LineId, MessageRef, News, OrderedCall};
use super::producers::{Fleet, LineContext, ProducerLine, SendError};
use super::verdict::{self, Circumstances, DeliveryFault};
use super::{KafkaConfig, examine};
use crate::BuildError;
use crate::call::{Flight, Publisher, Silence};
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use posthaste::sink::{Capabilities, Failure, Finding, Message, Ordering, Scope, Sink, Verdict};
use rdkafka::types::RDKafkaErrorCode;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep};

/// When to look again at a producer's queue that is full of bytes, if no report comes first.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// Topics that are asked about. If more are silent at once, they have one cause.
const INQUIRY_TOPICS_MAX: usize = 16;
/// Messages handed over before others may run.
const BURST: usize = 512;

/// Publishes to Apache Kafka.
#[derive(Debug)]
pub struct KafkaSink {
    config: Arc<KafkaConfig>,
    shared: LineContext,
    fleet: Arc<Fleet>,
    _watch: Option<watch::CredentialWatch>,
}

impl KafkaSink {
    /// Checks the configuration and begins to connect. A broker that is down is no error.
    pub fn start(config: &KafkaConfig, name: &str) -> Result<Self, BuildError> {
        config.check()?;
        let shared = LineContext {
            sink: name.into(),
            order: Arc::new(KeyOrder::default()),
            window: Arc::new(Semaphore::new(config.options.max_in_flight)),
            causes: Arc::default(),
        };
        let fleet = Arc::new(Fleet::start(config, name, shared.clone())?);
        let lines = Arc::downgrade(&fleet);
        let watch = watch::CredentialWatch::start(config, move || {
            lines.upgrade().map(|fleet| fleet.renew()).is_some()
        });
        Ok(Self { config: Arc::new(config.clone()), shared, fleet, _watch: watch })
    }
}

#[async_trait]
impl Sink for KafkaSink {
    fn capabilities(&self) -> Capabilities {
        // Key and headers count too, so a payload that is larger than this is refused for certain.
        let payload_bytes_max = Some(self.config.message_bytes_max);
        Capabilities { ordering: Ordering::Overlap, dedupes: false, payload_bytes_max }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        // This stands before the first wait, so that calls keep the order in which they were begun.
        let call = self.shared.order.enter(messages);
        let patience = self.config.options.delivery_timeout();
        let flight = Flight::new(messages, patience).in_window(&self.shared.window);
        if self.fleet.is_closed() {
            return flight.refused(Failure::of_sink("kafka.closed", "the sink was closed"));
        }
        let mut reports = Reports::new(self, messages, call, flight.deadline());
        flight.run(&mut reports).await
    }

    async fn close(&self) {
        self.fleet.close();
    }

    async fn examine(&self, destinations: &[String]) -> Vec<Finding> {
        examine::examine(&self.config, &self.fleet, &self.shared.causes, destinations).await
    }
}

/// The publisher: messages go to producers, delivery reports come back.
struct Reports<'a> {
    sink: &'a KafkaSink,
    call: OrderedCall<'a>,
    messages: &'a [Message],
    deadline: Instant,
    /// For each message, the line that it may go to or has gone to.
    lines: Vec<LineId>,
    /// For each message, whether it is with a producer and not reported.
    out: Vec<bool>,
    /// For each message, whether it was past its time when its line was emptied. The inquiry says why.
    purged: Vec<bool>,
    /// Set while the producer's queue is full.
    full: Option<Pin<Box<Sleep>>>,
    /// Whether time is up, so that nothing more is handed over.
    stopped: bool,
    line: Option<Arc<ProducerLine>>,
    /// The last topic that was found good. Most messages of a call have the same.
    topic: &'a str,
    news: Vec<(u32, News)>,
    sent: Vec<u32>,
}

/// Why a message is not with a producer.
enum HandOverError {
    Full,
    Fault(DeliveryFault),
    Verdict(Verdict),
}

impl From<SendError> for HandOverError {
    fn from(refusal: SendError) -> Self {
        match refusal {
            SendError::Full => Self::Full,
            SendError::Fault(fault) => Self::Fault(fault),
        }
    }
}

impl Publisher for Reports<'_> {
    /// The cause of the silence, by topic.
    type Found = BTreeMap<String, Failure>;

    /// A producer may keep a message longer than the call.
    const CLIENT_RELEASES: bool = true;

    fn poll_answers(&mut self, context: &mut Context<'_>, flight: &mut Flight<'_>) -> Poll<()> {
        let polled = self.call.poll_news(context, &mut self.news);
        self.take_news(flight);
        polled
    }

    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.full {
            Some(pause) => pause.as_mut().poll(context),
            None => Poll::Ready(()),
        }
    }

    fn send(&mut self, flight: &mut Flight<'_>) {
        self.full = None;
        for _ in 0..BURST {
            let Some(index) = flight.next() else { break };
            match self.try_send(index) {
                Ok(line) => {
                    flight.sent(index);
                    (self.lines[index], self.out[index]) = (line, true);
                    self.sent.push(index as u32);
                }
                Err(HandOverError::Full) => {
                    flight.put_back(index);
                    self.full = Some(Box::pin(sleep(FULL_PAUSE)));
                    break;
                }
                Err(HandOverError::Fault(fault)) => self.refuse(index, fault, flight),
                Err(HandOverError::Verdict(verdict)) => {
                    flight.decide(index, verdict);
                    self.refuse(index, DeliveryFault(RDKafkaErrorCode::InvalidTopic), flight);
                }
            }
        }
        self.call.sent(&mut self.sent);
    }

    fn question_time(&self, _: Duration) -> Duration {
        self.sink.config.inquest()
    }

    fn question(&mut self, flight: &Flight<'_>, within: Duration) -> BoxFuture<'static, Self::Found> {
        self.stop();
        let topic = |index: usize| self.messages[index].destination.clone();
        let topics: BTreeSet<_> = flight.unanswered().map(topic).collect();
        let inquiry = Inquiry {
            config: Arc::clone(&self.sink.config),
            fleet: Arc::clone(&self.sink.fleet),
            causes: Arc::clone(&self.sink.shared.causes),
        };
        Box::pin(async move { inquiry.ask(topics.into_iter().collect(), within).await })
    }

    fn silence(&self, index: usize, message: &Message, is_sent: bool, causes: &Self::Found) -> Verdict {
        let cause = causes.get(&message.destination);
        if !is_sent {
            // A message that was not sent is only concerned by an outage of the whole sink.
            let outage = causes.values().find(|failure| failure.scope == Scope::Sink);
            return outage.map_or(Verdict::Held, |failure| Silence::Absent(failure.clone()).verdict(false));
        }
        // Its topic is well, so other messages of the line are to blame.
        if self.purged[index] && cause.is_none_or(cause::is_unknown) {
            return Verdict::Held;
        }
        let nobody = || Failure::of_sink("kafka.timeout", "no answer in time");
        Silence::Absent(cause.cloned().unwrap_or_else(nobody)).verdict(true)
    }
}

impl<'a> Reports<'a> {
    fn new(sink: &'a KafkaSink, messages: &'a [Message], call: OrderedCall<'a>, deadline: Instant) -> Self {
        Self {
            sink,
            call,
            messages,
            deadline,
            lines: vec![0; messages.len()],
            out: vec![false; messages.len()],
            purged: vec![false; messages.len()],
            full: None,
            stopped: false,
            line: None,
            topic: "",
            news: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn take_news(&mut self, flight: &mut Flight<'_>) {
        let mut all = std::mem::take(&mut self.news);
        for (place, news) in all.drain(..) {
            let index = place as usize;
            match news {
                News::Go(line) if !self.stopped => {
                    self.lines[index] = line;
                    flight.go(index);
                }
                News::Go(_) => {}
                News::Held => flight.hold(index),
                News::Delivered => {
                    self.out[index] = false;
                    flight.decide(index, Verdict::Delivered);
                }
                News::Failed { fault, sent, line } => {
                    self.out[index] = false;
                    self.take_fault(index, fault, (sent, line), flight);
                }
            }
        }
        self.news = all;
    }

    fn take_fault(
        &mut self,
        index: usize,
        fault: DeliveryFault,
        at: (bool, LineId),
        flight: &mut Flight<'_>,
    ) {
        if fault.is_silence() {
            flight.silent(index);
        } else if fault.is_nobodys() && self.stopped && flight.is_sent(index) {
            self.purged[index] = true;
            flight.silent(index);
        } else {
            flight.decide(index, self.judge(index, fault, at));
        }
    }

    fn judge(&self, index: usize, fault: DeliveryFault, (sent, line): (bool, LineId)) -> Verdict {
        let at = Circumstances {
            topic: &self.messages[index].destination,
            identity: &self.sink.config.identity(),
            alone: self.sink.fleet.is_trial(line),
            sent,
        };
        verdict::of_fault(fault, at)
    }

    /// The messages of its key behind it must not go. The call hears that before anything else is handed
    /// over.
    fn refuse(&mut self, index: usize, fault: DeliveryFault, flight: &mut Flight<'_>) {
        self.call.sent(&mut self.sent);
        self.call.refuse(index as u32, fault);
        self.call.take_news(&mut self.news);
        self.take_news(flight);
    }

    fn try_send(&mut self, index: usize) -> Result<LineId, HandOverError> {
        let (topic, line) = (self.messages[index].destination.as_str(), self.lines[index]);
        if topic != self.topic || topic.is_empty() {
            verdict::check_topic(topic).map_err(HandOverError::Verdict)?;
            self.topic = topic;
        }
        match self.hand_over(index, line) {
            // The line is gone, and another one takes its place when it is asked for.
            Err(SendError::Fault(fault)) if fault.is_nobodys() => {
                self.line = None;
                let _ = self.sink.fleet.line(line);
                let instead = self.call.reroute(index as u32).ok_or(HandOverError::Fault(fault))?;
                Ok(self.hand_over(index, instead).map(|()| instead)?)
            }
            other => Ok(other.map(|()| line)?),
        }
    }

    fn hand_over(&mut self, index: usize, line: LineId) -> Result<(), SendError> {
        if self.line.as_ref().is_none_or(|last| last.id() != line || last.is_retired()) {
            self.line = Some(self.sink.fleet.line(line).map_err(SendError::Fault)?);
        }
        let Some(line) = &self.line else { return Ok(()) };
        line.send(MessageRef { call: self.call.id(), index: index as u32 }, record(&self.messages[index]))
    }

    /// Time is up: the line that holds messages past their time is emptied, and their topics are on trial.
    fn stop(&mut self) {
        self.stopped = true;
        let out = (0..self.messages.len()).filter(|index| self.out[*index]);
        let overdue: BTreeSet<_> =
            out.map(|index| (self.lines[index], self.messages[index].destination.as_str())).collect();
        for (line, topic) in overdue {
            self.sink.shared.order.suspect(topic, DeliveryFault(RDKafkaErrorCode::MessageTimedOut));
            self.sink.fleet.overdue(line);
        }
    }
}

impl Drop for Reports<'_> {
    fn drop(&mut self) {
        // An unanswered message is a ghost, and must not be one for ever.
        let out = (0..self.messages.len()).filter(|index| self.out[*index]);
        let lines: BTreeSet<LineId> = out.map(|index| self.lines[index]).collect();
        for line in lines {
            self.sink.fleet.expire(line, self.deadline.into_std());
        }
    }
}

/// Finds out why topics did not answer.
struct Inquiry {
    config: Arc<KafkaConfig>,
    fleet: Arc<Fleet>,
    causes: Arc<Causes>,
}

impl Inquiry {
    async fn ask(&self, topics: Vec<String>, within: Duration) -> BTreeMap<String, Failure> {
        if topics.is_empty() {
            return BTreeMap::new();
        }
        let asked = &topics[..topics.len().min(INQUIRY_TOPICS_MAX)];
        let settings = admin::settings(&self.config, asked, within);
        let (found, settings) =
            tokio::join!(admin::partitions(self.fleet.metadata(), asked, within), settings);
        // A broker that answers has let us in, and one missing broker of several is no outage of the whole
        // sink. So complaints explain a silence only when nobody answers.
        let nobody = || cause::unreachable(&self.config, "no broker answers");
        let outage = || self.causes.current(&self.config).unwrap_or_else(nobody);
        let wanted = |topic: &String| {
            let settings = settings.as_ref().ok()?.get(topic)?.as_ref().ok()?;
            Some(settings.min_insync_replicas)
        };
        let waited_ms = self.config.options.delivery_timeout_ms;
        let judge = |topic: &String| match found.get(topic) {
            Some(Ok(state)) => cause::of_topic(topic, state, wanted(topic), waited_ms),
            Some(Err(code)) => cause::of_code(topic, *code, &self.config.identity()),
            None if found.is_empty() => outage(),
            None => cause::of_silence(topic, waited_ms),
        };
        topics.iter().map(|topic| (topic.clone(), judge(topic))).collect()
    }
}
