//! The watchdog: a source that says nothing while messages wait at the broker is built anew (F67).
//!
//! Only silence is taken for a stall: there is lag, nothing was settled for a minute, and in all that time no
//! transaction was open and nothing waited for its turn. A handler may take minutes, a retry or a dependency
//! hours (F101). First it is told, in health. Once the source has had its time, the consumer gives everything
//! back and ends as [`ConsumerEnd::Stalled`]; whoever started it starts it again, with another source.
//!
//! Refused: a new source under a living engine. Two members of one name would meet at the broker, and every
//! answer under way would have to say which of them it is from.

use super::engine::Engine;
use super::handle::{ConsumerEnd, EngineStep};
use super::partition::PartitionState;
use crate::relay::DrainOutcome;
use crate::source::Partition;
use std::fmt::Display;
use std::time::Duration;
use tokio::time::Instant;

/// Without a settled message for this long, with lag and nothing under way, something is wrong.
pub(super) const STALLED_AFTER: Duration = Duration::from_secs(60);
/// A source has at least this long before another one takes its place: joining a group disturbs the others.
const SOURCE_AGE_MIN: Duration = Duration::from_secs(300);

impl Engine {
    /// The broker is out of reach, which is said once.
    pub(super) fn source_is_away(&mut self, error: String) {
        if self.source_away.is_none() {
            tracing::warn!(consumer = %self.plan.name, error, "the broker is out of reach; it is asked again");
        }
        (self.last_error, self.source_away) = (Some(error.clone()), Some((error, Instant::now())));
    }

    /// Looks whether anything goes on. Answers whether the source is to be built anew.
    pub(super) fn watch(&mut self, now: Instant) -> bool {
        if !self.is_silent() {
            self.well_at = now;
        }
        // Messages without an identity wait for one that has: no other source would bring it.
        let is_over = self.is_stalled(now) && self.unidentified.is_empty();
        if is_over && !self.is_draining() && now.saturating_duration_since(self.began) >= SOURCE_AGE_MIN {
            self.is_source_dead = true;
        }
        self.is_source_dead
    }

    /// Whether there is lag, and nothing here that it could be waiting for.
    fn is_silent(&self) -> bool {
        let lags = |state: &PartitionState| {
            state.is_reading() && state.end.is_some_and(|end| end > state.position())
        };
        let waits = |state: &PartitionState| {
            // What is ready waits for the rate that an operator set.
            state.queues.wakes_at().is_some() || self.rate.is_some() && state.queues.has_ready()
        };
        self.is_open()
            && self.transactions == 0
            && self.dependencies.away().next().is_none()
            && self.deferred < self.settings.deferred_max
            && !self.partitions.values().any(waits)
            && self.partitions.values().any(lags)
    }

    /// Whether that is so for a minute. A look at the deferred is a transaction too.
    pub(super) fn is_stalled(&self, now: Instant) -> bool {
        let is_still = now.saturating_duration_since(self.well_at) >= STALLED_AFTER;
        is_still && !self.looks.is_out && self.is_silent()
    }

    /// Its end, in words that are not ours.
    pub(super) fn refused(&self, why: impl Display) -> EngineStep {
        Err(ConsumerEnd::Refused(format!("{}: {why}", self.plan.name)))
    }

    /// It cannot go on, and nobody died: what is in hand is given back, or the next owner would count a death
    /// and charge a message with it.
    pub(super) async fn fail(&mut self, end: ConsumerEnd) -> Result<DrainOutcome, ConsumerEnd> {
        self.say_goodbye().await;
        Err(end)
    }

    /// The end of a drain, once everything is written or its time is up.
    pub(super) async fn drained(&mut self, now: Instant) -> Option<DrainOutcome> {
        let since = self.draining_since?;
        self.reading = None;
        let timeout = Duration::from_millis(self.settings.drain_timeout_ms);
        let is_late = now.saturating_duration_since(since) >= timeout;
        if !is_late
            && (self.transactions > 0
                || self.saves.is_out
                || self.acks.is_out
                || self.looks.is_out
                || self.begins.is_out)
        {
            return None;
        }
        let is_written = self.say_goodbye().await;
        // A source that is in trouble may not answer.
        let drained = tokio::time::timeout(timeout, self.plan.source.drain(Duration::ZERO)).await;
        let is_drained = matches!(drained, Ok(Ok(_)));
        for (partition, count) in drained.into_iter().flatten().flat_map(|drained| drained.lost) {
            self.count_lost(&partition, 0, i64::try_from(count).unwrap_or(i64::MAX));
        }
        Some(if is_written && is_drained && !is_late { DrainOutcome::Clean } else { DrainOutcome::Hurried })
    }

    /// Messages are gone that nobody has handled.
    pub(super) fn count_lost(&mut self, partition: &Partition, from: i64, until: i64) {
        if from < until {
            tracing::error!(
                consumer = %self.plan.name, %partition, from, until,
                "messages are gone from the broker before they were handled: its retention is shorter than the lag"
            );
            self.metrics.partition(partition).lost.increment((until - from) as u64);
        }
    }

    /// How it ends once everything is given back: as it was told to, or because of its source.
    pub(super) fn end(&self, outcome: DrainOutcome) -> Result<DrainOutcome, ConsumerEnd> {
        if !self.is_source_dead || self.is_told_to_stop() {
            return Ok(outcome);
        }
        let why = format!(
            "{}: there is lag, and the source has delivered nothing for a minute: it is built anew. No message is lost: the \
             broker keeps them",
            self.plan.name
        );
        Err(ConsumerEnd::Stalled(why))
    }
}
