//! One producer, and the thread that reads its reports and complaints.
//!
//! A report names its message by a number that travels with it as the delivery opaque: the call and the
//! index. So nothing is allocated for a report, and a burst of reports is told to [`KeyOrder`] under one
//! lock.
//!
//! The reading thread sleeps while nothing is in flight. Otherwise it looks for reports twice in a
//! millisecond, takes all that are there, and wakes each call once for them. Waiting inside the client's
//! `poll` was refused. It does not return when something has come, and it counts whole milliseconds, so that
//! the last one of every wait is spent spinning (a fifth of all CPU time, measured).

use crate::kafka::cause::Causes;
use crate::kafka::order::{KeyOrder, LineId, MessageRef};
use crate::kafka::verdict::DeliveryFault;
use crate::lock::locked;
use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Message as _, OwnedHeaders};
use rdkafka::producer::{
    BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long reports are gathered before they are told. It costs a quarter of a millisecond of latency, and
/// 2,000 short looks a second while something is in flight.
const SLICE: Duration = Duration::from_micros(500);
/// How often an idle producer is asked for errors.
const IDLE: Duration = Duration::from_millis(200);

/// The time that a replaced line has left for the answers that are on their way.
pub(in crate::kafka) const GRACE: Duration = Duration::from_millis(500);

const _: () = assert!(usize::BITS == 64, "a call's number and a place there share a pointer");

/// A producer.
pub(in crate::kafka) struct ProducerLine {
    id: LineId,
    trial: bool,
    producer: BaseProducer<Ears>,
    thread: Mutex<Option<Thread>>,
    /// Whether the line takes nothing more.
    retired: RwLock<bool>,
    times: Mutex<Times>,
}

#[derive(Debug, Default)]
struct Times {
    /// When a retired line gives up what is unanswered.
    give_up: Option<Instant>,
    /// When a line retires by itself, because nobody waits for its messages any more. It does not if all is
    /// answered before.
    expire: Option<Instant>,
}

impl std::fmt::Debug for ProducerLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProducerLine")
            .field("id", &self.id)
            .field("trial", &self.trial)
            .finish_non_exhaustive()
    }
}

/// What all lines of a sink share.
#[derive(Debug, Clone)]
pub(in crate::kafka) struct LineContext {
    pub(in crate::kafka) sink: Arc<str>,
    pub(in crate::kafka) order: Arc<KeyOrder>,
    /// Room for messages in all producers together.
    pub(in crate::kafka) window: Arc<Semaphore>,
    pub(in crate::kafka) causes: Arc<Causes>,
}

/// What one message looks like to a producer.
#[derive(Debug)]
pub(in crate::kafka) struct Record<'a> {
    pub(in crate::kafka) topic: &'a str,
    pub(in crate::kafka) key: Option<&'a str>,
    pub(in crate::kafka) payload: Option<&'a [u8]>,
    pub(in crate::kafka) headers: OwnedHeaders,
}

/// Why a producer does not take a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::kafka) enum SendError {
    /// The queue is full: later.
    Full,
    Fault(DeliveryFault),
}

impl ProducerLine {
    pub(in crate::kafka) fn start(
        id: LineId,
        trial: bool,
        config: &ClientConfig,
        shared: &LineContext,
    ) -> KafkaResult<Arc<Self>> {
        let ears = Ears {
            line: id,
            trial,
            shared: shared.clone(),
            in_flight: AtomicUsize::new(0),
            fatal: AtomicBool::new(false),
            heard: AtomicUsize::new(0),
            batch: Mutex::default(),
        };
        let producer = BaseProducer::from_config_and_context(config, ears)?;
        let line = Arc::new(Self {
            id,
            trial,
            producer,
            thread: Mutex::default(),
            retired: RwLock::new(false),
            times: Mutex::default(),
        });
        let reader = Arc::clone(&line);
        let thread = std::thread::Builder::new().name(format!("kafka-{id}")).spawn(move || reader.read());
        match thread {
            Ok(thread) => *locked(&line.thread) = Some(thread.thread().clone()),
            Err(error) => return Err(KafkaError::ClientCreation(format!("no thread: {error}"))),
        }
        Ok(line)
    }

    pub(in crate::kafka) fn id(&self) -> LineId {
        self.id
    }

    pub(in crate::kafka) fn is_trial(&self) -> bool {
        self.trial
    }

    pub(in crate::kafka) fn producer(&self) -> &BaseProducer<Ears> {
        &self.producer
    }

    /// Why the line takes nothing any more, if that is so.
    pub(in crate::kafka) fn broken(&self) -> Option<DeliveryFault> {
        if self.ears().fatal.load(Ordering::Acquire) { self.fatal() } else { None }
    }

    /// The fatal error that the client knows of, perhaps before its callback has told it.
    fn fatal(&self) -> Option<DeliveryFault> {
        let (code, _) = self.producer.client().fatal_error()?;
        self.ears().fatal.store(true, Ordering::Release);
        Some(DeliveryFault(code))
    }

    /// Hands a message over. Whether it arrives is reported later.
    pub(in crate::kafka) fn send(&self, message: MessageRef, record: Record<'_>) -> Result<(), SendError> {
        let opaque = (message.call as usize) << 32 | message.index as usize;
        let record = BaseRecord {
            topic: record.topic,
            partition: None,
            payload: record.payload,
            key: record.key,
            timestamp: None,
            headers: Some(record.headers),
            delivery_opaque: opaque,
        };
        // The message is counted before it is sent, because the report may be there first. It is also counted
        // before the look at `retired`, so a reader that sees the line retired waits for this message.
        let before = self.ears().in_flight.fetch_add(1, Ordering::SeqCst);
        // The lock is held until the producer has the message. A message that is handed to a line after that
        // was given up could still go out (G3).
        let retired = self.retired.read().unwrap_or_else(PoisonError::into_inner);
        if *retired {
            self.ears().in_flight.fetch_sub(1, Ordering::SeqCst);
            return Err(SendError::Fault(DeliveryFault(RDKafkaErrorCode::PurgeQueue)));
        }
        let sent = self.producer.send(record);
        drop(retired);
        if before == 0 {
            self.wake();
        }
        let Err((error, _)) = sent else { return Ok(()) };
        self.ears().in_flight.fetch_sub(1, Ordering::SeqCst);
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::QueueFull) => Err(SendError::Full),
            // The producer has ended, and the reader has not heard of it yet.
            Some(RDKafkaErrorCode::Fatal) => {
                let fault = self.fatal().filter(|_| self.trial);
                Err(SendError::Fault(fault.unwrap_or(DeliveryFault(RDKafkaErrorCode::Fatal))))
            }
            Some(code) => Err(SendError::Fault(DeliveryFault(code))),
            None => Err(SendError::Fault(DeliveryFault(RDKafkaErrorCode::InvalidArgument))),
        }
    }

    /// The line takes nothing more and ends when all is answered. At the time `give_up` it gives up the rest.
    pub(in crate::kafka) fn retire(&self, give_up: Instant) {
        let mut times = locked(&self.times);
        times.give_up = Some(times.give_up.map_or(give_up, |before| before.min(give_up)));
        *self.retired.write().unwrap_or_else(PoisonError::into_inner) = true;
        drop(times);
        self.wake();
    }

    pub(in crate::kafka) fn is_retired(&self) -> bool {
        *self.retired.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// From this time on nobody waits for some message of this line, so the line must not keep it for ever.
    pub(in crate::kafka) fn expire(&self, at: Instant) {
        let mut times = locked(&self.times);
        times.expire = Some(times.expire.map_or(at, |before| before.min(at)));
    }

    fn wake(&self) {
        if let Some(thread) = locked(&self.thread).as_ref() {
            thread.unpark();
        }
    }

    fn ears(&self) -> &Ears {
        self.producer.context()
    }

    /// Reads reports until the line is retired and nothing is left.
    fn read(self: Arc<Self>) {
        loop {
            let retired = self.is_retired();
            let in_flight = self.ears().in_flight.load(Ordering::SeqCst);
            if retired && in_flight == 0 {
                break;
            }
            self.keep_time(in_flight);
            std::thread::park_timeout(if in_flight == 0 { IDLE } else { SLICE });
            self.take_events();
            self.tell();
        }
        // The last owner waits for the client's threads, so it must not be a task.
        while Arc::strong_count(&self) > 1 {
            std::thread::park_timeout(SLICE);
        }
    }

    /// Takes the client's events until there are no more.
    fn take_events(&self) {
        loop {
            let before = self.ears().heard.load(Ordering::Relaxed);
            self.producer.poll(Duration::ZERO);
            if self.ears().heard.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }

    fn keep_time(&self, in_flight: usize) {
        let now = Instant::now();
        let mut times = locked(&self.times);
        if in_flight == 0 {
            times.expire = None;
        }
        let (give_up, expire) = (times.give_up, times.expire);
        drop(times);
        if expire.is_some_and(|at| at <= now) {
            self.retire(now + GRACE);
        }
        if give_up.is_some_and(|at| at <= now) {
            self.producer.purge(PurgeConfig::default().queue().inflight());
        }
    }

    /// Tells what was reported.
    fn tell(&self) {
        let mut batch = locked(&self.ears().batch);
        if batch.reports.is_empty() {
            return;
        }
        let fatal = if batch.faults && self.trial { self.fatal() } else { None };
        if let Some(fatal) = fatal {
            // On trial the producer's end is the topic's fault, because the client could not even begin.
            for fault in batch.reports.iter_mut().filter_map(|(_, fault)| fault.as_mut()) {
                if fault.is_nobodys() {
                    *fault = fatal;
                }
            }
        }
        self.ears().flush(&mut batch);
    }
}

/// The callbacks of the client.
pub(in crate::kafka) struct Ears {
    line: LineId,
    trial: bool,
    shared: LineContext,
    /// Messages that were handed over and not reported.
    in_flight: AtomicUsize,
    fatal: AtomicBool,
    /// Reports, errors and lines of the log so far.
    heard: AtomicUsize,
    batch: Mutex<ReportBatch>,
}

#[derive(Default)]
struct ReportBatch {
    reports: Vec<(MessageRef, Option<DeliveryFault>)>,
    faults: bool,
}

impl Ears {
    fn flush(&self, batch: &mut ReportBatch) {
        let reports = batch.reports.len();
        if batch.reports.iter().any(|(_, fault)| fault.is_none()) {
            self.shared.causes.forget();
        }
        self.shared.order.report(self.line, &mut batch.reports);
        batch.faults = false;
        self.shared.window.add_permits(reports);
        self.in_flight.fetch_sub(reports, Ordering::SeqCst);
    }
}

impl ClientContext for Ears {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        self.shared.causes.hear_log(text);
        let sink = &self.shared.sink;
        match level {
            RDKafkaLogLevel::Debug | RDKafkaLogLevel::Info => {
                tracing::trace!(%sink, facility, "{text}");
            }
            _ => tracing::debug!(%sink, facility, "{text}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Fatal) => {
                self.fatal.store(true, Ordering::Release);
                tracing::warn!(sink = %self.shared.sink, line = self.line, "a producer ended: {reason}");
                if let Some(topic) = topic_of(reason) {
                    self.shared.order.suspect(topic, DeliveryFault(RDKafkaErrorCode::Fatal));
                }
            }
            Some(code) => self.shared.causes.hear(code, reason),
            None => {}
        }
    }
}

impl ProducerContext for Ears {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: usize) {
        let message = MessageRef { call: (opaque >> 32) as u32, index: opaque as u32 };
        let fault = result.as_ref().err().map(|(error, record)| {
            let fault = DeliveryFault(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown));
            if !self.trial && !fault.is_nobodys() {
                self.shared.order.suspect(record.topic(), fault);
            }
            fault
        });
        self.heard.fetch_add(1, Ordering::Relaxed);
        let mut batch = locked(&self.batch);
        batch.faults |= fault.is_some();
        batch.reports.push((message, fault));
    }
}

/// The topic that a fatal error names: `ProduceRequest for NAME [0] with …`.
fn topic_of(reason: &str) -> Option<&str> {
    let (_, rest) = reason.split_once("ProduceRequest for ")?;
    Some(rest.split_once(" [")?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fatal_error_names_its_topic() {
        let reason =
            "Fatal error: Local: Gap-less guarantee: ProduceRequest for a.b [3] with 1 message(s) failed";
        assert_eq!(topic_of(reason), Some("a.b"));
        assert_eq!(topic_of("Broker: Cluster authorization failed"), None);
    }
}
