//! A stream read from a position on, by `XREAD` on a connection of its own.
//!
//! What is there is read together with what the stream says of itself, in one transaction. Once the end was
//! reached it is known how many entries were added before the position. So later it is known how many of
//! those behind it are missing, however they were removed. Where nothing is there, `XREAD` waits at the
//! server. Each wait ends after a while, which is the sign of life of a connection on which nothing else
//! comes.

use super::log::{StreamLook, look_of, refused};
use super::place;
use super::record::delivery;
use crate::redis::client::OwnConnection;
use ::redis::{Pipeline, Value};
use async_trait::async_trait;
use posthaste::source::leased::{Tail, Tailed};
use posthaste::source::{Partition, SourceError};
use std::ops::Range;
use std::time::Duration;
use tokio::time::timeout;

/// How long the server waits for an entry, and how much longer we wait for the server.
const BLOCK: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(4);
/// Entries of one page.
const PAGE: usize = 256;

pub(super) struct RedisTail {
    connection: OwnConnection,
    partition: Partition,
    next: i64,
    /// How many entries were ever added before the position, once that is known.
    added_before: Option<i64>,
}

impl RedisTail {
    pub(super) fn new(connection: OwnConnection, partition: &Partition, from: i64) -> Self {
        Self { connection, partition: partition.clone(), next: from.max(0), added_before: None }
    }

    async fn ask(&self, commands: &Pipeline) -> Result<Vec<Value>, SourceError> {
        let stream = &self.partition.topic;
        let asked = timeout(BLOCK + SLACK, self.connection.ask(commands)).await;
        let silent = |_| {
            SourceError::Transient(format!("the reading of stream {stream:?} ended: the server is silent"))
        };
        let lost = |error| SourceError::Transient(format!("the reading of stream {stream:?} ended: {error}"));
        asked.map_err(silent)?.map_err(lost)
    }

    fn read<'a>(&self, commands: &'a mut Pipeline, block: Option<Duration>) -> &'a mut Pipeline {
        let command = commands.cmd("XREAD").arg("COUNT").arg(PAGE);
        if let Some(block) = block {
            command.arg("BLOCK").arg(u64::try_from(block.as_millis()).unwrap_or(1));
        }
        command.arg("STREAMS").arg(&*self.partition.topic).arg(place::behind(self.next))
    }

    /// What is there now.
    async fn now(&mut self) -> Result<Vec<Tailed>, SourceError> {
        let mut commands = Pipeline::new();
        commands.cmd("MULTI").cmd("XINFO").arg("STREAM").arg(&*self.partition.topic);
        self.read(&mut commands, None).cmd("EXEC");
        let replies = self.ask(&commands).await?;
        let stream = &self.partition.topic;
        let done = match replies.last() {
            Some(Value::Array(done)) => done,
            Some(Value::ServerError(error)) => return Err(refused(stream, error)),
            _ => return Err(SourceError::Transient(format!("a strange answer of stream {stream:?}"))),
        };
        let gone = || SourceError::Transient(format!("stream {stream:?} is gone"));
        let found = look_of(&self.partition, done.first().unwrap_or(&Value::Nil))?.ok_or_else(gone)?;
        let lost = self.lost(&found);
        let mut page = self.page(done.get(1).unwrap_or(&Value::Nil))?;
        if page.len() < PAGE {
            self.added_before = Some(found.added);
        }
        if let Some(lost) = lost {
            page.insert(0, Tailed::Lost(lost));
        }
        Ok(page)
    }

    /// What is missing between the position and the first entry.
    fn lost(&mut self, found: &StreamLook) -> Option<Range<i64>> {
        let (first, before) = (found.look.log.first, self.added_before?);
        let missing = found.added - before - found.there;
        if self.next > first || missing <= 0 {
            return None;
        }
        self.added_before = Some(before + missing);
        let lost = self.next.max(first.saturating_sub(missing))..first;
        self.next = first;
        (!lost.is_empty()).then_some(lost)
    }

    /// What comes next.
    async fn wait(&mut self) -> Result<Vec<Tailed>, SourceError> {
        let mut commands = Pipeline::new();
        self.read(&mut commands, Some(BLOCK));
        let replies = self.ask(&commands).await?;
        self.page(replies.first().unwrap_or(&Value::Nil))
    }

    fn page(&mut self, reply: &Value) -> Result<Vec<Tailed>, SourceError> {
        let entries = match reply {
            Value::ServerError(error) => return Err(refused(&self.partition.topic, error)),
            Value::Array(streams) => entries(streams),
            _ => &[],
        };
        let mut page = Vec::with_capacity(entries.len() + 1);
        for entry in entries {
            if let Some(delivery) = delivery(&self.partition, entry)? {
                self.next = delivery.position.unwrap_or(self.next).saturating_add(1);
                page.push(Tailed::Message(delivery));
            }
        }
        let count = i64::try_from(entries.len()).unwrap_or(i64::MAX);
        self.added_before = self.added_before.map(|before| before.saturating_add(count));
        Ok(page)
    }
}

/// The entries of the one stream that was asked for.
pub(super) fn entries(streams: &[Value]) -> &[Value] {
    let Some(Value::Array(stream)) = streams.first() else { return &[] };
    match stream.get(1) {
        Some(Value::Array(entries)) => entries,
        _ => &[],
    }
}

#[async_trait]
impl Tail for RedisTail {
    async fn next(&mut self) -> Result<Vec<Tailed>, SourceError> {
        loop {
            let now = self.now().await?;
            if !now.is_empty() {
                return Ok(now);
            }
            let came = self.wait().await?;
            if !came.is_empty() {
                return Ok(came);
            }
        }
    }
}
