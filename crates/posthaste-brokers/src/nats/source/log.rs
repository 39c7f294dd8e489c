//! What there is of a stream, and reading a range of it.

use super::tail::NatsTail;
use crate::BuildError;
use crate::nats::NatsConfig;
use crate::nats::client::link::{self, NatsLink};
use crate::nats::client::session::Session;
use crate::nats::client::streams::{AskError, StreamInfo, ask_api, is_name};
use async_nats::jetstream;
use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::sink::Failure;
use posthaste::source::leased::{LogLook, PlainLog, Tail, Tailed};
use posthaste::source::log::{LogPage, LogPartition, LogReader};
use posthaste::source::{Partition, SourceError};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long a call waits for a connection, and for an answer.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(5);
/// A range that brings nothing for so long is asked for once more: what is missing may be no message.
const SILENCE: Duration = Duration::from_secs(2);
/// Bytes of one page.
const PAGE_BYTES: usize = 4 << 20;
/// JetStream's number for "stream not found".
const NO_STREAM: u32 = 10_059;

/// The streams of a server, as logs.
pub struct NatsLog {
    link: Arc<NatsLink>,
    /// What a range is read on with.
    at: Mutex<Option<RangeReading>>,
}

struct RangeReading {
    partition: Partition,
    next: i64,
    tail: NatsTail,
    ahead: VecDeque<Tailed>,
}

impl std::fmt::Debug for NatsLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsLog").finish_non_exhaustive()
    }
}

/// Whether a stream can have this name.
pub(super) fn check_name(topic: &str) -> Result<(), BuildError> {
    if is_name(topic) && !topic.contains(['.', '*', '>', '/', '\\']) {
        return Ok(());
    }
    let why = format!(
        "{topic:?} cannot be the name of a stream: topics of a NATS source are streams, not subjects"
    );
    Err(BuildError::option("topics", why))
}

pub(super) fn transient(failure: &Failure) -> SourceError {
    SourceError::Transient(failure.message.clone())
}

impl NatsLog {
    /// Checks the configuration, and begins to connect. A server that is down is no error yet.
    pub fn new(config: &NatsConfig) -> Result<Self, BuildError> {
        let servers = config.check()?;
        Ok(Self { link: Arc::new(link::start(config.clone(), servers, "source")), at: Mutex::default() })
    }

    async fn session(&self) -> Result<Arc<Session>, SourceError> {
        self.link.session_if_any(CONNECT_WAIT).await.map_err(|failure| transient(&failure))
    }

    async fn open(&self, partition: &Partition, from: i64) -> Result<NatsTail, SourceError> {
        let session = self.session().await?;
        let stream = &*partition.topic;
        let Some(info) = info(&session, stream).await? else {
            return Err(SourceError::Transient(format!("there is no stream {stream:?}")));
        };
        NatsTail::open(session, partition, from, &info).await
    }

    /// Reads on where the last range ended, or opens it.
    async fn reading(&self, partition: &Partition, from: i64) -> Result<RangeReading, SourceError> {
        match self.at.lock().await.take() {
            Some(at) if at.partition == *partition && at.next == from => Ok(at),
            _ => {
                let tail = self.open(partition, from).await?;
                Ok(RangeReading { partition: partition.clone(), next: from, tail, ahead: VecDeque::new() })
            }
        }
    }
}

/// The stream, if it is there.
pub(super) async fn info(session: &Arc<Session>, stream: &str) -> Result<Option<StreamInfo>, SourceError> {
    check_name(stream).map_err(|error| SourceError::Fatal(error.to_string()))?;
    match ask_api(session, &format!("$JS.API.STREAM.INFO.{stream}"), "", ANSWER).await {
        Ok(info) => Ok(Some(info)),
        Err(AskError::Refused(error)) if error.err_code == NO_STREAM => Ok(None),
        Err(AskError::Denied) => Err(SourceError::Transient(format!(
            "{} may not ask for stream {stream:?}: allow it to publish to $JS.API.STREAM.INFO.{stream}. Its messages wait",
            session.identity
        ))),
        Err(error) => Err(SourceError::Transient(format!("stream {stream:?} cannot be seen: {error}"))),
    }
}

/// Why a stream is no log, if it is none.
pub(super) fn refusal(info: &StreamInfo) -> Option<String> {
    let (name, retention) = (&info.config.name, &info.config.retention);
    let is_log = !matches!(retention.as_str(), "workqueue" | "interest");
    (!is_log).then(|| {
        format!(
            "stream {name:?} forgets what its consumers have acknowledged (retention {retention}), so nobody can read it \
             from a position again, and no order can be kept. Read it as a queue (order = \"none\"), or use a stream with \
             retention limits: one that sources from it, for example"
        )
    })
}

/// Sequence numbers are positions. The first one is 1.
fn position(sequence: u64) -> i64 {
    i64::try_from(sequence).unwrap_or(i64::MAX)
}

pub(super) fn look_of(info: &StreamInfo, partition: &Partition) -> LogLook {
    let end = position(info.state.last_seq).saturating_add(1);
    // A stream without messages says 0, or the number that the next one gets.
    let first = if info.state.messages == 0 { end } else { position(info.state.first_seq) };
    let log = LogPartition {
        partition: partition.clone(),
        first,
        end,
        committed: None,
        log_id: Some(format!("{}@{}", info.config.name, info.created).into()),
    };
    LogLook { log, removed_max: i64::MAX }
}

#[async_trait]
impl LogReader for NatsLog {
    async fn survey(&self, topics: &[String]) -> Result<Vec<LogPartition>, SourceError> {
        let mut found = Vec::new();
        for topic in topics {
            let partition = Partition::new(topic.as_str(), 0);
            found.extend(self.look(&partition).await?.map(|look| look.log));
        }
        Ok(found)
    }

    async fn position_at(&self, partition: &Partition, time: Timestamp) -> Result<i64, SourceError> {
        let session = self.session().await?;
        let Some(info) = info(&session, &partition.topic).await? else { return Ok(0) };
        let policy =
            serde_json::json!({ "deliver_policy": "by_start_time", "opt_start_time": time.rfc3339() });
        let policy: DeliverPolicy = serde_json::from_value(policy)
            .map_err(|error| SourceError::Fatal(format!("a time that JetStream does not take: {error}")))?;
        let config = pull::OrderedConfig { deliver_policy: policy, max_batch: 1, ..Default::default() };
        let mut tail = NatsTail::begin(session, partition, 0, &info, config).await?;
        loop {
            for tailed in timeout(ANSWER, tail.next()).await.map_err(|_| silent(partition))?? {
                match tailed {
                    Tailed::Message(delivery) => return Ok(delivery.position.unwrap_or(0)),
                    Tailed::Empty(end) => return Ok(end),
                    Tailed::Lost(_) => {}
                }
            }
        }
    }

    async fn read(
        &self,
        partition: &Partition,
        range: Range<i64>,
        limit: usize,
    ) -> Result<LogPage, SourceError> {
        let mut page = LogPage { deliveries: Vec::new(), next: range.start };
        let Some(look) = self.look(partition).await? else {
            return Err(SourceError::Transient(format!("there is no stream {:?}", partition.topic)));
        };
        // Beyond the end there is nothing to wait for.
        let end = range.end.min(look.log.end);
        page.next = page.next.max(look.log.first.min(range.end));
        if page.next >= end {
            page.next = range.end;
            return Ok(page);
        }
        let mut reading = self.reading(partition, page.next).await?;
        let (mut bytes, mut is_second) = (0, false);
        while page.next < end && page.deliveries.len() < limit && bytes < PAGE_BYTES {
            let Some(tailed) = reading.ahead.pop_front() else {
                match timeout(SILENCE, reading.tail.next()).await {
                    Ok(more) => reading.ahead.extend(more?),
                    Err(_) if is_second => return Err(silent(partition)),
                    Err(_) => {
                        is_second = true;
                        reading.tail = self.open(partition, page.next).await?;
                    }
                }
                continue;
            };
            match tailed {
                Tailed::Message(delivery) if delivery.position >= Some(range.end) => page.next = range.end,
                Tailed::Message(delivery) => {
                    page.next = delivery.position.unwrap_or(page.next).saturating_add(1);
                    bytes += delivery.message.bytes();
                    page.deliveries.push(delivery);
                }
                Tailed::Lost(Range { end: until, .. }) | Tailed::Empty(until) => {
                    page.next = page.next.max(until)
                }
            }
        }
        reading.next = page.next;
        *self.at.lock().await = Some(reading);
        if page.next >= end {
            page.next = range.end;
        }
        Ok(page)
    }
}

fn silent(partition: &Partition) -> SourceError {
    SourceError::Transient(format!(
        "stream {:?} brings nothing, although there is something",
        partition.topic
    ))
}

#[async_trait]
impl PlainLog for NatsLog {
    async fn look(&self, partition: &Partition) -> Result<Option<LogLook>, SourceError> {
        let session = self.session().await?;
        let Some(info) = info(&session, &partition.topic).await? else { return Ok(None) };
        match refusal(&info) {
            Some(why) => Err(SourceError::Fatal(why)),
            None => Ok(Some(look_of(&info, partition))),
        }
    }

    async fn tail(&self, partition: &Partition, from: i64) -> Result<Box<dyn Tail>, SourceError> {
        Ok(Box::new(self.open(partition, from).await?))
    }
}

/// JetStream over a session's connection.
pub(super) fn context(session: &Session) -> jetstream::Context {
    let mut context = jetstream::new(session.client.clone());
    context.set_timeout(ANSWER);
    context
}
