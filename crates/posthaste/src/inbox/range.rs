//! A range of a topic once more: a reader without a group copies it among the deferred, in chunks that are
//! transactions of their own, and the running consumers handle it.
//!
//! Never beyond the saved position, which is looked at again for each chunk, and once more by the statement
//! that copies: what is behind it may be under way, and a copy would let later ones of its key pass. Unless
//! what is done is to be done again, the range must be younger than the marks' retention: older marks are
//! gone, and would not protect.

use super::admin::{ConsumerAdmin, ConsumerPartition, ConsumerStatus};
use super::filter::Filter;
use super::identity::{Found, Identity, Order, order_id};
use super::kept::KeptHeaders;
use super::store::Work;
use crate::admin::{Actor, AdminError, History};
use crate::clock::Clock;
use crate::source::log::{LogPartition, LogReader};
use crate::source::{Delivery, Partition, SeekTo, SourceError};
use serde::Serialize;
use std::ops::Range;
use std::sync::Arc;

/// Nothing is copied while so many messages wait.
pub const WAITING_MAX: u64 = 10_000;

const DAY_MICROS: i64 = 86_400_000_000;

/// Which messages, and as what they are copied.
#[derive(Debug)]
pub struct RangeFilter {
    /// Only this key.
    pub key: Option<String>,
    /// Only these.
    pub types: Filter,
    /// What the consumer's handlers take.
    pub handlers: Vec<Filter>,
    /// What its messages are known by.
    pub identity: Identity,
    /// What they are kept in order with.
    pub order: Order,
}

impl RangeFilter {
    /// What no handler takes, or no mark can hold, is left out.
    fn work(&self, delivery: Delivery) -> Option<Work> {
        let has_key = |key: &String| delivery.message.key.as_deref() == Some(key.as_bytes());
        let takes = self.key.as_ref().is_none_or(has_key)
            && self.types.takes_delivery(&delivery)
            && self.handlers.iter().any(|handler| handler.takes_delivery(&delivery));
        let Found::Known(id) = self.identity.of(&delivery) else { return None };
        let order_id = order_id(self.order, &delivery);
        let work =
            Work { delivery: Arc::new(delivery), id, order_id, attempts: 0, history: History::default() };
        takes.then_some(work)
    }
}

/// What is read of one partition.
#[derive(Debug, Serialize)]
pub struct Span {
    /// Which.
    #[serde(skip)]
    pub place: Partition,
    /// Its number.
    pub partition: i32,
    /// From here on.
    pub from: i64,
    /// Up to here, and not with it.
    pub to: i64,
    /// Everything before it was looked at.
    pub reached: i64,
    /// Messages that the filter takes.
    pub matched: u64,
    /// Those among them that wait to be handled now.
    pub copied: u64,
    /// Where the range was to begin, if the broker has it no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_from: Option<i64>,
}

/// Why a range cannot be copied, or no further.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// The broker.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The database.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// It is not asked for in a way that could be done.
    #[error("{0}")]
    Refused(String),
}

/// Copies a range of a topic. Whoever calls it decides when it goes on, and when it stops.
pub struct RangeReplay {
    /// The consumer's name.
    pub consumer: String,
    /// Its database.
    pub admin: Box<dyn ConsumerAdmin>,
    /// Its broker.
    pub reader: Arc<dyn LogReader>,
    /// Which messages.
    pub filter: RangeFilter,
    /// Whether what is done is to be done once more.
    pub repeat: bool,
    /// Which of their headers the copies have.
    pub headers: KeptHeaders,
    /// Days for which marks are kept.
    pub marks_days: u32,
}

impl RangeReplay {
    /// Which positions are meant.
    pub async fn plan(
        &self,
        clock: &dyn Clock,
        topic: &str,
        partition: Option<i32>,
        range: Range<SeekTo>,
    ) -> Result<Vec<Span>, RangeError> {
        let (logs, status) = (self.reader.survey(&[topic.to_owned()]).await?, self.status().await?);
        let mut spans = Vec::new();
        for log in logs.iter().filter(|log| partition.is_none_or(|only| only == log.partition.number)) {
            let place = &log.partition;
            let Some(row) = status.partitions.iter().find(|row| is(row, place)) else { continue };
            let Some(saved) = row.position else { continue };
            same_log(row, log)?;
            let asked = log.position(&*self.reader, range.start).await?;
            let to = log.position(&*self.reader, range.end).await?.min(saved).min(log.end);
            let from = asked.max(log.first).min(to);
            if !self.repeat && from < to {
                self.check_marks(clock, place, from).await?;
            }
            spans.push(Span {
                place: place.clone(),
                partition: place.number,
                from,
                to,
                reached: from,
                matched: 0,
                copied: 0,
                gone_from: (asked < log.first).then_some(asked),
            });
        }
        if spans.is_empty() {
            let what =
                partition.map_or_else(|| format!("topic {topic}"), |number| format!("{topic}/{number}"));
            let why = "`posthaste consumers` shows what it has";
            let refused = format!("consumer `{}` has no position in {what}: {why}", self.consumer);
            return Err(RangeError::Refused(refused));
        }
        Ok(spans)
    }

    /// Reads on in a partition, and copies what matches: how many did. Without somebody who acts it only
    /// counts. `None`: too much waits already.
    pub async fn copy(
        &self,
        span: &mut Span,
        messages_max: usize,
        actor: Option<&Actor>,
    ) -> Result<Option<usize>, RangeError> {
        if actor.is_some() && !self.has_room(span, messages_max).await? {
            return Ok(None);
        }
        let page = self.reader.read(&span.place, span.reached..span.to, messages_max).await?;
        let works: Vec<Work> =
            page.deliveries.into_iter().filter_map(|delivery| self.filter.work(delivery)).collect();
        if let Some(actor) = actor.filter(|_| !works.is_empty()) {
            let copied = self.admin.copy_range(&self.consumer, &works, self.repeat, &self.headers, actor);
            span.copied += copied.await?;
        }
        span.matched += works.len() as u64;
        span.reached = page.next;
        Ok(Some(works.len()))
    }

    async fn status(&self) -> Result<ConsumerStatus, RangeError> {
        let found = self.admin.consumers(Some(&self.consumer)).await?;
        let none =
            || format!("consumer `{}` has no position yet: nothing can be handled again", self.consumer);
        found.into_iter().next().ok_or_else(|| RangeError::Refused(none()))
    }

    /// Refuses what is older than the marks.
    async fn check_marks(&self, clock: &dyn Clock, place: &Partition, from: i64) -> Result<(), RangeError> {
        let days = self.marks_days;
        let oldest = clock.now().plus_micros(-(i64::from(days) * DAY_MICROS));
        let young = self.reader.position_at(place, oldest).await?;
        if young <= from {
            return Ok(());
        }
        Err(RangeError::Refused(format!(
            "{place}: position {from} is older than the marks, which are kept for {days} days \
             (retention.marks_days): what was done could be done again. Begin at position:{young}, or say \
             --repeat if that is meant"
        )))
    }

    /// Whether more may wait. A seek backwards meanwhile shortens the range.
    async fn has_room(&self, span: &mut Span, messages: usize) -> Result<bool, RangeError> {
        let status = self.status().await?;
        let saved = status.partitions.iter().find(|row| is(row, &span.place)).and_then(|row| row.position);
        span.to = span.to.min(saved.unwrap_or(0)).max(span.reached);
        Ok(status.deferred.exact && status.deferred.count + messages as u64 <= WAITING_MAX)
    }
}

fn is(row: &ConsumerPartition, place: &Partition) -> bool {
    row.topic == *place.topic && row.partition == place.number
}

fn same_log(row: &ConsumerPartition, log: &LogPartition) -> Result<(), RangeError> {
    match (&row.log_id, &log.log_id) {
        (Some(ours), Some(theirs)) if **ours != **theirs => Err(RangeError::Refused(format!(
            "{} was handled in the log {ours}, and this is {theirs}: positions of one say nothing about the \
             other. See `posthaste consumers status`",
            log.partition
        ))),
        _ => Ok(()),
    }
}
