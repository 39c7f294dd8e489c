//! What there is of a stream, and reading a range of it.

use super::place;
use super::record::{delivery, position, text};
use super::tail::RedisTail;
use crate::BuildError;
use crate::redis::RedisConfig;
use crate::redis::client::{self, ErrorReply, Servers, Session};
use ::redis::{Pipeline, ServerError, Value};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::source::leased::{LogLook, PlainLog, Tail};
use posthaste::source::log::{LogPage, LogPartition, LogReader};
use posthaste::source::{Partition, SourceError};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long a call waits for a connection, and for an answer.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(5);

/// The streams of a server, or of a cluster, as logs.
#[derive(Debug)]
pub struct RedisLog {
    config: Arc<RedisConfig>,
    servers: Servers,
}

impl RedisLog {
    /// Checks the configuration, and begins to connect. A server that is down is no error yet.
    pub fn new(config: &RedisConfig) -> Result<Self, BuildError> {
        let topology = config.check()?;
        let config = Arc::new(config.clone());
        Ok(Self { servers: client::connect(&config, topology, "source"), config })
    }

    async fn session(&self, stream: &str) -> Result<Arc<Session>, SourceError> {
        let found = self.servers.session(stream, CONNECT_WAIT).await;
        found.map_err(|failure| SourceError::Transient(failure.message))
    }

    /// One answer for each question.
    async fn ask(&self, stream: &str, questions: &Pipeline) -> Result<Vec<Value>, SourceError> {
        let session = self.session(stream).await?;
        let asked = timeout(ANSWER, session.ask(questions)).await;
        let asked =
            asked.map_err(|_| SourceError::Transient(format!("{} does not answer", session.server)))?;
        asked.map_err(|error| SourceError::Transient(format!("{}: {error}", session.server)))
    }
}

/// What an error of the server means for a reading.
pub(super) fn refused(stream: &str, error: &ServerError) -> SourceError {
    let ErrorReply { code, words } = ErrorReply::of(error);
    match code {
        "WRONGTYPE" => {
            SourceError::Fatal(format!("{stream:?} is no stream ({words}). Name the key of a stream"))
        }
        "NOPERM" => SourceError::Transient(format!(
            "stream {stream:?} may not be read: {words}. Allow XREAD, XRANGE and XINFO on it. Its messages wait"
        )),
        _ => SourceError::Transient(format!("stream {stream:?} cannot be read: {code} {words}")),
    }
}

/// A stream as it describes itself.
pub(super) struct StreamLook {
    pub(super) look: LogLook,
    /// How many entries it has, and how many were ever added.
    pub(super) there: i64,
    pub(super) added: i64,
}

/// What `XINFO STREAM` says; `None` if there is no such stream.
pub(super) fn look_of(partition: &Partition, reply: &Value) -> Result<Option<StreamLook>, SourceError> {
    let stream = &*partition.topic;
    let parts = match reply {
        Value::Array(parts) => parts,
        Value::ServerError(error) if error.details().is_some_and(|words| words.contains("no such key")) => {
            return Ok(None);
        }
        Value::ServerError(error) => return Err(refused(stream, error)),
        _ => return Err(SourceError::Transient(format!("a strange answer about stream {stream:?}"))),
    };
    let of = |name: &str| {
        let mut pairs = parts.chunks_exact(2);
        pairs.find(|pair| text(&pair[0]).as_deref() == Some(name)).map(|pair| &pair[1])
    };
    let place = |name: &str| of(name).and_then(text).map(|id| position(stream, &id)).transpose();
    let end = place("last-generated-id")?.unwrap_or(0).saturating_add(1);
    let first = match of("first-entry") {
        Some(Value::Array(entry)) => {
            entry.first().and_then(text).map(|id| position(stream, &id)).transpose()?
        }
        _ => None,
    };
    let number = |name: &str| match of(name) {
        Some(Value::Int(number)) => *number,
        _ => 0,
    };
    // A server before 7.0 does not say how many were ever added.
    let (there, added) = (number("length"), number("entries-added"));
    let (partition, first) = (partition.clone(), first.unwrap_or(end));
    let log = LogPartition { partition, first, end, committed: None, log_id: None };
    Ok(Some(StreamLook { look: LogLook { log, removed_max: (added - there).max(0) }, there, added }))
}

#[async_trait]
impl LogReader for RedisLog {
    async fn survey(&self, topics: &[String]) -> Result<Vec<LogPartition>, SourceError> {
        let mut found = Vec::new();
        for topic in topics {
            let partition = Partition::new(topic.as_str(), 0);
            found.extend(self.look(&partition).await?.map(|look| look.log));
        }
        Ok(found)
    }

    async fn position_at(&self, partition: &Partition, time: Timestamp) -> Result<i64, SourceError> {
        let from = place::of_millis(time.0.div_euclid(1_000));
        let page = self.read(partition, from..i64::MAX, 1).await?;
        match page.deliveries.first().and_then(|delivery| delivery.position) {
            Some(position) => Ok(position),
            None => Ok(self.look(partition).await?.map_or(0, |look| look.log.end)),
        }
    }

    async fn read(
        &self,
        partition: &Partition,
        range: Range<i64>,
        limit: usize,
    ) -> Result<LogPage, SourceError> {
        let mut page = LogPage { deliveries: Vec::new(), next: range.start };
        if range.is_empty() {
            return Ok(page);
        }
        let mut questions = Pipeline::new();
        let (from, to) = (place::id(range.start), place::id(range.end - 1));
        questions.cmd("XRANGE").arg(&*partition.topic).arg(from).arg(to).arg("COUNT").arg(limit);
        let replies = self.ask(&partition.topic, &questions).await?;
        let entries = match replies.first() {
            Some(Value::Array(entries)) => entries,
            Some(Value::ServerError(error)) => return Err(refused(&partition.topic, error)),
            _ => {
                return Err(SourceError::Transient(format!(
                    "a strange answer of stream {:?}",
                    partition.topic
                )));
            }
        };
        for entry in entries {
            if let Some(delivery) = delivery(partition, entry)? {
                page.next = delivery.position.unwrap_or(page.next).saturating_add(1);
                page.deliveries.push(delivery);
            }
        }
        if entries.len() < limit {
            page.next = range.end;
        }
        Ok(page)
    }
}

#[async_trait]
impl PlainLog for RedisLog {
    async fn look(&self, partition: &Partition) -> Result<Option<LogLook>, SourceError> {
        let mut questions = Pipeline::new();
        questions.cmd("XINFO").arg("STREAM").arg(&*partition.topic);
        let replies = self.ask(&partition.topic, &questions).await?;
        let found = look_of(partition, replies.first().unwrap_or(&Value::Nil))?;
        Ok(found.map(|found| found.look))
    }

    async fn tail(&self, partition: &Partition, from: i64) -> Result<Box<dyn Tail>, SourceError> {
        let session = self.session(&partition.topic).await?;
        let connection = session.another(&self.config, "source").await;
        let connection = connection.map_err(|failure| SourceError::Transient(failure.message))?;
        Ok(Box::new(RedisTail::new(connection, partition, from)))
    }
}
