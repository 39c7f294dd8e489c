//! The local broker as a sink.
//!
//! A message is `Delivered` when the transaction that holds it is committed with `synchronous = FULL`: it is
//! on the disk. Calls are written one after the other by one task, which takes all that wait into one
//! transaction: group commit, and the outcome of every call is known before the next one is begun, so order
//! needs no more than [`CallOrder`](super::order).
//!
//! | answer | verdict | code | scope |
//! |---|---|---|---|
//! | committed, or dropped as a duplicate | `Delivered` | | |
//! | busy, disk full, failed read; rolled back | `Retry` | `local.unavailable` | sink |
//! | the file is gone, or another one is in its place | `Retry` | `local.gone` | sink |
//! | read-only, no rights, no broker's file, other version | `Retry` | `local.refused` | sink |
//! | damaged | `Retry` | `local.damaged` | sink |
//! | the commit failed, or the file went away under it | `Unknown` | `local.unknown` | sink |
//! | payload too large | `Rejected` | `local.too_large` | event |
//! | no topic: empty, too long, control characters | `Rejected` | `local.topic` | event |
//!
//! Whatever is wrong with the file is an outage, never an event's fault.

use super::file::{Broker, OpenFile, gone};
use super::order::CallOrder;
use super::pack::Pack;
use super::publish::write;
use crate::connect::Synchronous;
use crate::writer::WriteError;
use async_trait::async_trait;
use bytes::Bytes;
use posthaste::crash_point;
use posthaste::sink::{Capabilities, Failure, Finding, Level, Message, Ordering, Sink, Verdict};
use posthaste::store::StoreError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Names of the checks that the sink makes of its broker.
pub const CHECKS: &[&str] = &["local_file", "durability"];

/// Messages of one transaction. Calls are not divided: the last one may exceed it. A full page of the relay
/// is enough for its sync to cost little; more would only keep the next call waiting, and the write lock from
/// others.
const GROUP_MESSAGES_MAX: usize = 2_000;

/// Calls that may wait for the task. The relay has fewer in flight; beyond it callers wait.
const CALLS_MAX: usize = 256;

/// How often retention is looked after. Minutes matter to nobody who keeps messages for days.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// Longest topic, in bytes, as for events.
const TOPIC_BYTES_MAX: usize = 255;

/// The local broker as a sink. Needs a runtime to be made in.
pub struct LocalSink {
    broker: Arc<Broker>,
    order: Arc<CallOrder>,
    calls: mpsc::Sender<QueuedCall>,
}

/// A call that waits to be written.
struct QueuedCall {
    number: u64,
    messages: Pack,
    reply: oneshot::Sender<Result<(), WriteFailure>>,
}

/// Why a call was not written, or may not have been.
#[derive(Debug, Clone)]
enum WriteFailure {
    Not(Failure),
    Perhaps(Failure),
}

impl std::fmt::Debug for LocalSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalSink").field("broker", &self.broker).finish_non_exhaustive()
    }
}

impl LocalSink {
    /// A sink for this broker.
    #[must_use]
    pub fn new(broker: Arc<Broker>) -> Self {
        let (calls, queue) = mpsc::channel(CALLS_MAX);
        let order = Arc::<CallOrder>::default();
        tokio::spawn(write_on(Arc::clone(&broker), Arc::clone(&order), queue));
        Self { broker, order, calls }
    }

    /// Whether there can be a topic of this name; if not, why.
    pub fn check_topic(topic: &str) -> Result<(), String> {
        match topic.is_empty() || topic.len() > TOPIC_BYTES_MAX || topic.chars().any(char::is_control) {
            true => {
                Err(format!("is no topic, which has 1 to {TOPIC_BYTES_MAX} bytes and no control characters"))
            }
            false => Ok(()),
        }
    }

    fn refuse(&self, message: &Message) -> Option<Failure> {
        let max = self.broker.config.payload_bytes_max;
        if let Err(why) = Self::check_topic(&message.destination) {
            return Some(Failure::of_event("local.topic", format!("the destination {why}")));
        }
        let bytes = message.payload.as_ref().map_or(0, Bytes::len);
        (bytes > max).then(|| {
            Failure::of_event("local.too_large", format!("payload has {bytes} bytes, the broker takes {max}"))
        })
    }
}

#[async_trait]
impl Sink for LocalSink {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            ordering: Ordering::Overlap,
            dedupes: true,
            payload_bytes_max: Some(self.broker.config.payload_bytes_max),
        }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        if messages.is_empty() {
            return Vec::new();
        }
        let (reply, mut answer) = oneshot::channel();
        let queue = |number: u64, verdicts: &[Option<Verdict>]| {
            let to_write = messages.iter().zip(verdicts).filter(|(_, verdict)| verdict.is_none());
            let mut messages = Pack::default();
            to_write.for_each(|(message, _)| messages.push(message));
            // Full: more calls overlap than anybody should make. The call fails like one in an outage.
            let _ = self.calls.try_send(QueuedCall { number, messages, reply });
        };
        let (call, verdicts) = self.order.enter(messages, |message| self.refuse(message), queue);
        let outcome = (&mut answer).await.unwrap_or_else(|_| {
            let why = "more calls overlap than the sink takes, or it is closed. Nothing was written";
            self.order.fail([call.number]);
            Err(WriteFailure::Not(Failure::of_sink("local.unavailable", why)))
        });
        let judge = |verdict: Option<Verdict>| {
            verdict.unwrap_or_else(|| match &outcome {
                Ok(()) => Verdict::Delivered,
                Err(WriteFailure::Not(failure)) => Verdict::Retry(failure.clone()),
                Err(WriteFailure::Perhaps(failure)) => Verdict::Unknown(failure.clone()),
            })
        };
        let verdicts = verdicts.into_iter().map(judge).collect();
        // From here on the verdicts are handed out, and the next call may be written.
        drop(call);
        verdicts
    }

    async fn examine(&self, _destinations: &[String]) -> Vec<Finding> {
        vec![self.examine_file(), self.examine_durability()]
    }
}

impl LocalSink {
    fn examine_file(&self) -> Finding {
        let config = &self.broker.config;
        let path = config.path.display();
        let finding = |level, text| Finding { check: "local_file".to_owned(), level, text };
        if !config.path.exists() && config.create {
            return finding(Level::Ok, format!("{path} is not there yet; the first start makes it"));
        }
        match self.broker.link() {
            Ok(_) => finding(Level::Ok, format!("{path} is a local broker and can be opened")),
            Err(error) => finding(Level::Fail, error.to_string()),
        }
    }

    fn examine_durability(&self) -> Finding {
        let (level, text) = match self.broker.config.synchronous {
            Synchronous::Full => {
                (Level::Ok, "every acknowledged message is on the disk; it is not replicated")
            }
            Synchronous::Normal => (
                Level::Warn,
                "synchronous = normal: a power cut may undo the last acknowledged messages. Use full where events must \
                 not be lost",
            ),
        };
        Finding { check: "durability".to_owned(), level, text: text.to_owned() }
    }
}

/// The task: a group at a time, until the sink is gone.
async fn write_on(broker: Arc<Broker>, order: Arc<CallOrder>, mut queue: mpsc::Receiver<QueuedCall>) {
    let mut next_purge = Instant::now() + PURGE_EVERY;
    loop {
        let first = tokio::select! {
            first = queue.recv() => first,
            () = tokio::time::sleep_until(next_purge) => {
                next_purge = Instant::now() + PURGE_EVERY;
                if let Err(error) = broker.purge().await {
                    tracing::warn!(%error, "retention of the local broker could not be looked after; it is tried again");
                }
                continue;
            }
        };
        let Some(first) = first else { return };
        let group = gather(&order, first, &mut queue);
        if !group.is_empty() {
            write_group(&broker, &order, group).await;
        }
    }
}

/// Takes what waits. A call that was overtaken by a failure is answered at once.
fn gather(order: &CallOrder, first: QueuedCall, queue: &mut mpsc::Receiver<QueuedCall>) -> Vec<QueuedCall> {
    let (mut group, mut messages) = (Vec::new(), 0);
    let mut next = Some(first);
    while let Some(call) = next.take() {
        if order.may_write(call.number) {
            messages += call.messages.len();
            group.push(call);
        } else {
            order.fail([call.number]);
            let why = "an earlier call failed, and order is kept. Nothing was written";
            let _ = call.reply.send(Err(WriteFailure::Not(Failure::of_sink("local.unavailable", why))));
        }
        if messages < GROUP_MESSAGES_MAX {
            next = queue.try_recv().ok();
        }
    }
    group
}

async fn write_group(broker: &Arc<Broker>, order: &CallOrder, group: Vec<QueuedCall>) {
    let (mut messages, mut replies) = (Vec::new(), Vec::new());
    for call in group {
        messages.push(call.messages);
        replies.push((call.number, call.reply));
    }
    let outcome = commit(broker, messages).await;
    if outcome.is_err() {
        order.fail(replies.iter().map(|(number, _)| *number));
    }
    for (_, reply) in replies {
        // Nobody waits for it any more: then nobody was told.
        let _ = reply.send(outcome.clone());
    }
}

async fn commit(broker: &Arc<Broker>, messages: Vec<Pack>) -> Result<(), WriteFailure> {
    if messages.iter().all(|call| call.len() == 0) {
        return Ok(());
    }
    let is_there = broker.config.path.exists();
    let link: OpenFile = broker.link().map_err(|error| match trouble(&error) {
        WriteFailure::Not(failure) if !is_there => {
            WriteFailure::Not(Failure { code: "local.gone".into(), ..failure })
        }
        trouble => trouble,
    })?;
    let shared = Arc::clone(broker);
    let written: Result<usize, WriteError> =
        link.writer.run(move |tx| Ok(write(tx, &shared.config, &messages)?)).await;
    // CRASH(local.committed): the messages are at the broker and the relay does not know. They are sent
    // again, and dropped as duplicates within the window; later, the inbox knows them (G2, G5).
    crash_point!("local.committed");
    written.map_err(|error| trouble(&StoreError::from(error)))?;
    if !link.is_there() {
        // Committed into a file that nobody will ever read, unless it is put back.
        let error = gone(&broker.config.path);
        return Err(WriteFailure::Perhaps(Failure::of_sink("local.gone", error.to_string())));
    }
    Ok(())
}

fn trouble(error: &StoreError) -> WriteFailure {
    let of = |code: &'static str| Failure::of_sink(code, error.to_string());
    match error {
        StoreError::Transient { outcome_known: false, .. } => WriteFailure::Perhaps(of("local.unknown")),
        StoreError::Broken { .. } => WriteFailure::Not(of("local.damaged")),
        StoreError::Fatal { .. } => WriteFailure::Not(of("local.refused")),
        _ => WriteFailure::Not(of("local.unavailable")),
    }
}
