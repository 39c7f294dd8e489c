//! A stream read from a position on, by an ordered consumer.

use super::log::{context, info, look_of};
use super::record::delivery;
use crate::nats::client::session::Session;
use crate::nats::client::streams::{StreamInfo, ended};
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use posthaste::source::leased::{Tail, Tailed};
use posthaste::source::{Partition, SourceError};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Messages that the server sends ahead, and about how many bytes they may be together. A pull cannot be
/// bounded by bytes: a larger message would never come. So its number goes by the stream's average.
const BATCH: (i64, i64) = (16, 500);
const BATCH_BYTES: u64 = 16 << 20;
/// Messages of one page.
const PAGE: usize = 256;
/// For making the consumer.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct NatsTail {
    session: Arc<Session>,
    partition: Partition,
    messages: pull::Ordered,
    /// The consumer's name. A message of another one is not what was begun with.
    consumer: String,
    /// The number that is expected next.
    next: i64,
    /// Nothing lay between the beginning and this end of the stream.
    empty_until: Option<i64>,
}

impl NatsTail {
    pub(super) async fn open(
        session: Arc<Session>,
        partition: &Partition,
        from: i64,
        info: &StreamInfo,
    ) -> Result<Self, SourceError> {
        let from = from.max(1);
        let average = info.state.bytes / info.state.messages.max(1);
        let most = i64::try_from(BATCH_BYTES / average.max(1)).unwrap_or(BATCH.1).clamp(BATCH.0, BATCH.1);
        let start_sequence = from.unsigned_abs();
        let config = pull::OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence },
            max_batch: most,
            ..Default::default()
        };
        Self::begin(session, partition, from, info, config).await
    }

    /// Begins with any policy.
    pub(super) async fn begin(
        session: Arc<Session>,
        partition: &Partition,
        from: i64,
        info: &StreamInfo,
        config: pull::OrderedConfig,
    ) -> Result<Self, SourceError> {
        let stream = &info.config.name;
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            let who = &session.identity;
            SourceError::Transient(format!(
                "stream {stream:?} cannot be read: {what} ({error}). If {who} may not publish to $JS.API.CONSUMER.CREATE.{stream}.> and \
                 $JS.API.CONSUMER.MSG.NEXT.{stream}.>, allow it"
            ))
        };
        let begun = timeout(OPEN_WITHIN, async {
            let made = context(&session).create_consumer_on_stream(config, stream).await;
            let consumer = made.map_err(|error| failed("no consumer could be made", &error))?;
            let (name, pending) = (consumer.cached_info().name.clone(), consumer.cached_info().num_pending);
            let messages = consumer.messages().await;
            let messages = messages.map_err(|error| failed("its consumer cannot be asked", &error))?;
            Ok((messages, name, pending))
        });
        let (messages, consumer, pending) =
            begun.await.unwrap_or_else(|_| Err(failed("no answer", &"it took too long")))?;
        let end = look_of(info, partition).log.end;
        // What was published since the look is behind the end.
        let empty_until = (pending == 0 && from < end).then_some(end);
        Ok(Self { session, partition: partition.clone(), messages, consumer, next: from, empty_until })
    }

    fn lost(&self, why: &dyn std::fmt::Display) -> SourceError {
        SourceError::Transient(format!("the reading of stream {:?} ended: {why}", self.partition.topic))
    }

    /// What messages are, with the gaps before them.
    fn take(&mut self, message: &Message, page: &mut Vec<Tailed>) -> Result<bool, SourceError> {
        let info = message.info().map_err(|error| self.lost(&error))?;
        if info.consumer != self.consumer {
            return Err(self.lost(&"its consumer was made anew"));
        }
        let delivery = delivery(&self.partition, message, &info);
        let position = delivery.position.unwrap_or(0);
        let has_gap = self.next > 0 && position > self.next;
        if has_gap {
            // Lost or deleted: the stream's first number will say.
            page.push(Tailed::Lost(self.next..position));
        }
        self.next = position.saturating_add(1);
        page.push(Tailed::Message(delivery));
        Ok(has_gap)
    }

    /// Of the gaps only what is below the stream's first number is lost.
    async fn judge_gaps(&mut self, page: &mut Vec<Tailed>) -> Result<(), SourceError> {
        let found = info(&self.session, &self.partition.topic).await?;
        let first = found.map_or(0, |info| look_of(&info, &self.partition).log.first);
        page.retain_mut(|tailed| match tailed {
            Tailed::Lost(range) => {
                range.end = range.end.min(first);
                range.start < range.end
            }
            _ => true,
        });
        Ok(())
    }
}

#[async_trait]
impl Tail for NatsTail {
    async fn next(&mut self) -> Result<Vec<Tailed>, SourceError> {
        if let Some(until) = self.empty_until.take() {
            self.next = self.next.max(until);
            return Ok(vec![Tailed::Empty(until)]);
        }
        let first = tokio::select! {
            first = self.messages.next() => first,
            why = ended(&self.session) => return Err(self.lost(&why)),
        };
        let Some(first) = first else { return Err(self.lost(&"the server says no more")) };
        let first = first.map_err(|error| self.lost(&error))?;
        let mut page = Vec::new();
        let mut has_gap = self.take(&first, &mut page)?;
        while page.len() < PAGE
            && let Some(Some(more)) = self.messages.next().now_or_never()
        {
            has_gap |= self.take(&more.map_err(|error| self.lost(&error))?, &mut page)?;
        }
        if has_gap {
            self.judge_gaps(&mut page).await?;
        }
        Ok(page)
    }
}
