//! What a consumer counts, and the gauges that it keeps.

use super::engine::Engine;
use super::failure::FailureKind;
use super::handle::ConsumerPlan;
use super::partition::Stage;
use super::store::{DueOutcome, DueStep, InboxSwept, MessageOutcome};
use crate::event::{TIME_HEADER, Timestamp};
use crate::health::pulse::PulseMeter;
use crate::source::{Delivery, Partition};
use crate::store::ErrorClass;
use crate::telemetry::{ConsumerMetrics, HandledAs, PartitionMetrics, TopicMetrics};
use metrics::Gauge;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The database's name among the breakers.
const DATABASE: &str = "database";

/// Counters, gauges and histograms of one consumer.
pub(super) struct Meter {
    pub(super) all: ConsumerMetrics,
    /// How long after its event was made the effects of a message were committed.
    pub(super) latency: PulseMeter,
    topics: FxHashMap<Arc<str>, TopicMetrics>,
    partitions: BTreeMap<Partition, PartitionMetrics>,
    breakers: BTreeMap<Arc<str>, Gauge>,
}

impl Meter {
    pub(super) fn new(plan: &ConsumerPlan) -> Self {
        let all = ConsumerMetrics::new(&plan.service, &plan.name);
        let breakers = BTreeMap::from([(Arc::from(DATABASE), all.breaker(DATABASE))]);
        let latency = PulseMeter::new();
        Self { all, latency, topics: FxHashMap::default(), partitions: BTreeMap::new(), breakers }
    }

    pub(super) fn topic(&mut self, topic: &Arc<str>) -> &TopicMetrics {
        let Self { all, topics, .. } = self;
        topics.entry(Arc::clone(topic)).or_insert_with(|| all.topic(topic))
    }

    pub(super) fn partition(&mut self, partition: &Partition) -> &PartitionMetrics {
        let Self { all, partitions, .. } = self;
        partitions.entry(partition.clone()).or_insert_with(|| all.partition(partition))
    }

    pub(super) fn transaction(&self, messages: usize, took: Duration) {
        self.all.transaction.record(took.as_secs_f64());
        self.all.batch.record(messages as f64);
    }

    /// A message is settled by a transaction that ran it, or found it done.
    pub(super) fn handled(&mut self, outcome: MessageOutcome, delivery: &Delivery, now: Timestamp) {
        let topic = self.topic(&delivery.partition().topic);
        match outcome {
            MessageOutcome::Done => self.done(delivery, now),
            MessageOutcome::Duplicate => topic.handled(HandledAs::Duplicate, 1),
            MessageOutcome::Redriven => topic.redriven.increment(1),
            MessageOutcome::Held | MessageOutcome::Again => {}
        }
    }

    /// What a look at the deferred messages did counts as if they had come from the broker just now.
    pub(super) fn looked(&mut self, outcome: &DueOutcome, now: Timestamp) {
        if let Some((first, _)) = outcome.steps.iter().find(|(_, step)| *step == DueStep::Done) {
            let each = outcome.handler_time.as_secs_f64() / outcome.done() as f64;
            self.topic(&first.partition().topic).handle.record(each);
        }
        for (delivery, step) in &outcome.steps {
            let topic = self.topic(&delivery.partition().topic);
            match step {
                DueStep::Done => self.done(delivery, now),
                DueStep::Failed(kind) => topic.failed(class(kind)),
                DueStep::Retried => topic.retries.increment(1),
                DueStep::Dead => topic.handled(HandledAs::Dead, 1),
            }
        }
    }

    /// The effects of a message are committed.
    fn done(&mut self, delivery: &Delivery, now: Timestamp) {
        let made_at = delivery.message.header(TIME_HEADER).and_then(Timestamp::parse);
        let topic = self.topic(&delivery.partition().topic);
        topic.handled(HandledAs::Done, 1);
        topic.committed(now, delivery.published_at, made_at);
        if let Some(made_at) = made_at {
            self.latency.delivered(std::iter::once(now.0.saturating_sub(made_at.0)), Instant::now());
        }
    }

    pub(super) fn swept(&self, swept: &InboxSwept) {
        self.all.deferred.set(swept.deferred as f64);
        self.all.oldest_deferred.set(swept.oldest_deferred.unwrap_or_default().as_secs_f64());
        self.all.dead_letters.set(swept.dead_letters as f64);
        self.all.dead_purged.increment(swept.letters);
    }
}

/// The class under which a failure is counted.
pub(super) fn class(kind: &FailureKind) -> ErrorClass {
    match kind {
        FailureKind::Poison(_) | FailureKind::Committed | FailureKind::Broken => ErrorClass::Permanent,
        FailureKind::Timeout | FailureKind::ConnectionLost => ErrorClass::Unknown,
        _ => ErrorClass::Transient,
    }
}

impl Engine {
    /// Sets the gauges. Not on every turn.
    pub(super) fn measure(&mut self) {
        let now = self.clock.now();
        self.metrics.partitions.retain(|partition, _| self.partitions.contains_key(partition));
        self.metrics.all.assigned.set(self.partitions.len() as f64);
        for (partition, state) in &mut self.partitions {
            let gauges = self.metrics.partition(partition);
            gauges.stopped.set(f64::from(u8::from(matches!(state.stage, Stage::Stopped(_)))));
            if !state.is_reading() {
                continue;
            }
            let lag = state.end.map_or(0, |end| (end - state.position()).max(0)).max(state.hand.out() as i64);
            // What is not delivered has no age that we know: it is at least as old as the lag that we see.
            state.lag_since = (lag > 0).then(|| state.lag_since.unwrap_or(now));
            let since = state.oldest().or(state.lag_since).filter(|_| lag > 0);
            gauges.lag_messages.set(lag as f64);
            gauges.lag_seconds.set(since.map_or(0.0, |since| now.seconds_since(since).max(0.0)));
            gauges.position.set(state.position() as f64);
            gauges.in_hand.set(state.hand.out() as f64);
        }
        let database = self.database.level();
        let levels = self.dependencies.levels().map(|(name, level)| (Arc::clone(name), level));
        let levels: Vec<_> = levels.chain([(Arc::from(DATABASE), database)]).collect();
        // One that nobody waits for any more is closed.
        self.metrics.breakers.values().for_each(|gauge| gauge.set(0.0));
        let Meter { all, breakers, .. } = &mut self.metrics;
        for (name, level) in levels {
            let made = || all.breaker(&name);
            breakers.entry(Arc::clone(&name)).or_insert_with(made).set(level);
        }
    }
}
