//! The consumer's metrics.
//!
//! A label costs a series in every process, so each metric has only those that somebody asks by: `partition`
//! where a single one can stand still, `topic` where topics differ, and otherwise the consumer alone. All
//! handles are there from the start, and count from 0: a counter that is first seen with its first failure
//! hides that failure from `increase`.

use crate::event::Timestamp;
use crate::source::Partition;
use crate::store::ErrorClass;
use metrics::{Counter, Gauge, Histogram, SharedString, counter, gauge, histogram};
use std::sync::Arc;

/// Messages in the partition that are not settled.
pub const LAG_MESSAGES: &str = "posthaste_consumer_lag_messages";
/// Age of the oldest of them; 0 without lag.
pub const LAG_SECONDS: &str = "posthaste_consumer_lag_seconds";
/// The saved position.
pub const POSITION: &str = "posthaste_consumer_position";
/// Messages delivered and not settled.
pub const IN_HAND: &str = "posthaste_consumer_in_hand";
/// Deferred messages.
pub const DEFERRED: &str = "posthaste_consumer_deferred";
/// Age of the oldest deferred message.
pub const OLDEST_DEFERRED: &str = "posthaste_consumer_oldest_deferred_seconds";
/// Dead letters.
pub const DEAD_LETTERS: &str = "posthaste_consumer_dead_letters";
/// 0 closed, 1 open, 0.5 probing.
pub const BREAKER: &str = "posthaste_consumer_breaker_state";
/// Partitions this member has.
pub const ASSIGNED: &str = "posthaste_consumer_assigned";
/// 1 while the partition waits for an operator.
pub const STOPPED: &str = "posthaste_consumer_stopped";
/// Messages settled, by outcome.
pub const HANDLED: &str = "posthaste_consumer_handled_total";
/// Failed runs that will be repeated.
pub const RETRIES: &str = "posthaste_consumer_retries_total";
/// Transactions that met another one.
pub const CONFLICTS: &str = "posthaste_consumer_conflicts_total";
/// Failed runs, by class.
pub const FAILURES: &str = "posthaste_consumer_failures_total";
/// Messages that the broker no longer had.
pub const LOST: &str = "posthaste_consumer_lost_total";
/// Positions at the broker that were not ours.
pub const FOREIGN_POSITIONS: &str = "posthaste_consumer_foreign_positions_total";
/// Changes of the assignment.
pub const REBALANCES: &str = "posthaste_consumer_rebalances_total";
/// Dead letters that came back by the broker.
pub const REDRIVEN: &str = "posthaste_consumer_redriven_total";
/// Times that all partitions were taken anew.
pub const RETAKEN: &str = "posthaste_consumer_retaken_total";
/// Dead letters that a declared retention deleted.
pub const DEAD_PURGED: &str = "posthaste_consumer_dead_letters_purged_total";
/// Time of one run of the handler.
pub const HANDLE_SECONDS: &str = "posthaste_consumer_handle_seconds";
/// Time of one transaction.
pub const TRANSACTION_SECONDS: &str = "posthaste_consumer_transaction_seconds";
/// Messages in a transaction.
pub const BATCH_MESSAGES: &str = "posthaste_consumer_batch_messages";
/// From the broker's time to the commit.
pub const DELIVERY_SECONDS: &str = "posthaste_consumer_delivery_seconds";
/// From the header `time` to the commit.
pub const END_TO_END_SECONDS: &str = "posthaste_consumer_end_to_end_seconds";

/// What each metric means, for the exporter's HELP lines.
pub(super) const DESCRIPTIONS: [(&str, &str); 25] = [
    (LAG_MESSAGES, "messages in the partition that are not settled"),
    (LAG_SECONDS, "age in seconds of the oldest message that is not settled; 0 without lag"),
    (POSITION, "position in the database: everything before it is decided"),
    (IN_HAND, "messages delivered and not settled"),
    (DEFERRED, "messages that wait for a retry or for their key"),
    (OLDEST_DEFERRED, "age in seconds of the oldest deferred message"),
    (DEAD_LETTERS, "dead letters"),
    (BREAKER, "0 closed, 0.5 probing, 1 open"),
    (ASSIGNED, "partitions this member has"),
    (STOPPED, "1 while the partition waits for an operator"),
    (HANDLED, "messages settled: done, duplicate, deferred, dead or skipped"),
    (RETRIES, "failed runs that will be repeated"),
    (CONFLICTS, "transactions that met another one and are repeated"),
    (FAILURES, "failed runs of a handler"),
    (LOST, "messages that the broker deleted before they were read"),
    (FOREIGN_POSITIONS, "positions at the broker that somebody else moved"),
    (REBALANCES, "changes of the assignment"),
    (REDRIVEN, "dead letters that somebody sent again by the broker"),
    (RETAKEN, "times that all partitions were taken anew because the database was another one"),
    (DEAD_PURGED, "dead letters deleted by retention: nobody replayed or discarded them"),
    (HANDLE_SECONDS, "seconds of one run of the handler"),
    (TRANSACTION_SECONDS, "seconds of one transaction"),
    (BATCH_MESSAGES, "messages in a transaction"),
    (DELIVERY_SECONDS, "seconds from the broker's time of the message to the commit"),
    (END_TO_END_SECONDS, "seconds from the header time of the message to the commit"),
];

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandledAs {
    /// Its effects are committed.
    Done,
    /// It was done before.
    Duplicate,
    /// It waits in the database.
    Deferred,
    /// It was given up.
    Dead,
    /// No handler takes it.
    Skipped,
}

/// The handles of one consumer.
pub struct ConsumerMetrics {
    of: ConsumerLabels,
    /// [`DEFERRED`].
    pub deferred: Gauge,
    /// [`OLDEST_DEFERRED`].
    pub oldest_deferred: Gauge,
    /// [`DEAD_LETTERS`].
    pub dead_letters: Gauge,
    /// [`ASSIGNED`].
    pub assigned: Gauge,
    /// [`CONFLICTS`].
    pub conflicts: Counter,
    /// [`REBALANCES`].
    pub rebalances: Counter,
    /// [`RETAKEN`].
    pub retaken: Counter,
    /// [`DEAD_PURGED`].
    pub dead_purged: Counter,
    /// [`TRANSACTION_SECONDS`].
    pub transaction: Histogram,
    /// [`BATCH_MESSAGES`].
    pub batch: Histogram,
}

struct ConsumerLabels {
    service: SharedString,
    consumer: SharedString,
}

/// The handles of one topic of a consumer.
pub struct TopicMetrics {
    handled: [Counter; 5],
    failures: [Counter; 3],
    /// [`RETRIES`].
    pub retries: Counter,
    /// [`REDRIVEN`].
    pub redriven: Counter,
    /// [`HANDLE_SECONDS`].
    pub handle: Histogram,
    delivery: Histogram,
    end_to_end: Histogram,
}

/// The handles of one partition, for as long as this member has it.
///
/// When it is dropped, the gauges that tell of trouble go to 0: the next owner speaks for the partition.
pub struct PartitionMetrics {
    /// [`LAG_MESSAGES`].
    pub lag_messages: Gauge,
    /// [`LAG_SECONDS`].
    pub lag_seconds: Gauge,
    /// [`POSITION`].
    pub position: Gauge,
    /// [`IN_HAND`].
    pub in_hand: Gauge,
    /// [`STOPPED`].
    pub stopped: Gauge,
    /// [`LOST`].
    pub lost: Counter,
    /// [`FOREIGN_POSITIONS`].
    pub foreign_positions: Counter,
}

/// Makes a handle with the labels of a consumer, and further ones.
macro_rules! made {
    ($kind:ident, $of:expr, $name:expr $(, $label:literal => $value:expr)*) => {
        $kind!($name, "service" => $of.service.clone(), "consumer" => $of.consumer.clone() $(, $label => $value)*)
    };
}

impl ConsumerMetrics {
    /// Of this consumer of this service.
    #[must_use]
    pub fn new(service: &str, consumer: &str) -> Self {
        let of = ConsumerLabels { service: service.to_owned().into(), consumer: consumer.to_owned().into() };
        Self {
            deferred: made!(gauge, of, DEFERRED),
            oldest_deferred: made!(gauge, of, OLDEST_DEFERRED),
            dead_letters: made!(gauge, of, DEAD_LETTERS),
            assigned: made!(gauge, of, ASSIGNED),
            conflicts: made!(counter, of, CONFLICTS),
            rebalances: made!(counter, of, REBALANCES),
            retaken: made!(counter, of, RETAKEN),
            dead_purged: made!(counter, of, DEAD_PURGED),
            transaction: made!(histogram, of, TRANSACTION_SECONDS),
            batch: made!(histogram, of, BATCH_MESSAGES),
            of,
        }
    }

    /// The breaker of a dependency, the database included.
    pub fn breaker(&self, dependency: &str) -> Gauge {
        made!(gauge, self.of, BREAKER, "dependency" => dependency.to_owned())
    }

    /// Those of a topic.
    #[must_use]
    pub fn topic(&self, topic: &Arc<str>) -> TopicMetrics {
        use HandledAs::{Dead, Deferred, Done, Duplicate, Skipped};
        let topic = SharedString::from(Arc::clone(topic));
        let handled = |outcome: HandledAs| made!(counter, self.of, HANDLED, "topic" => topic.clone(), "outcome" => outcome.as_str());
        let failures = |class: ErrorClass| made!(counter, self.of, FAILURES, "topic" => topic.clone(), "class" => class.as_str());
        TopicMetrics {
            // In the order of the variants.
            handled: [Done, Duplicate, Deferred, Dead, Skipped].map(handled),
            failures: [ErrorClass::Transient, ErrorClass::Permanent, ErrorClass::Unknown].map(failures),
            retries: made!(counter, self.of, RETRIES, "topic" => topic.clone()),
            redriven: made!(counter, self.of, REDRIVEN, "topic" => topic.clone()),
            handle: made!(histogram, self.of, HANDLE_SECONDS, "topic" => topic.clone()),
            delivery: made!(histogram, self.of, DELIVERY_SECONDS, "topic" => topic.clone()),
            end_to_end: made!(histogram, self.of, END_TO_END_SECONDS, "topic" => topic.clone()),
        }
    }

    /// Those of a partition.
    #[must_use]
    pub fn partition(&self, partition: &Partition) -> PartitionMetrics {
        let topic = SharedString::from(Arc::clone(&partition.topic));
        let number = SharedString::from(partition.number.to_string());
        macro_rules! of_partition {
            ($kind:ident, $name:expr) => {
                made!($kind, self.of, $name, "topic" => topic.clone(), "partition" => number.clone())
            };
        }
        PartitionMetrics {
            lag_messages: of_partition!(gauge, LAG_MESSAGES),
            lag_seconds: of_partition!(gauge, LAG_SECONDS),
            position: of_partition!(gauge, POSITION),
            in_hand: of_partition!(gauge, IN_HAND),
            stopped: of_partition!(gauge, STOPPED),
            lost: of_partition!(counter, LOST),
            foreign_positions: of_partition!(counter, FOREIGN_POSITIONS),
        }
    }
}

impl HandledAs {
    /// The label's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Duplicate => "duplicate",
            Self::Deferred => "deferred",
            Self::Dead => "dead",
            Self::Skipped => "skipped",
        }
    }
}

impl TopicMetrics {
    /// So many messages were settled this way.
    pub fn handled(&self, outcome: HandledAs, messages: u64) {
        self.handled[outcome as usize].increment(messages);
    }

    /// A run failed.
    pub fn failed(&self, class: ErrorClass) {
        self.failures[class as usize].increment(1);
    }

    /// A message's effects were committed: how long after the broker had it, and after its event was made.
    /// Clocks of hosts differ, so a time may lie ahead; that is 0.
    pub fn committed(&self, now: Timestamp, published_at: Option<Timestamp>, made_at: Option<Timestamp>) {
        for (histogram, since) in [(&self.delivery, published_at), (&self.end_to_end, made_at)] {
            if let Some(since) = since {
                histogram.record(now.seconds_since(since).max(0.0));
            }
        }
    }
}

impl Drop for PartitionMetrics {
    fn drop(&mut self) {
        for gauge in [&self.lag_messages, &self.lag_seconds, &self.in_hand, &self.stopped] {
            gauge.set(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics::{Key, KeyName, Metadata, Recorder, Unit};
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, PoisonError};

    /// Remembers what was made, and the numbers behind it. A histogram's is the last sample, as of a gauge.
    #[derive(Default)]
    struct Made(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

    struct Last(Arc<AtomicU64>);

    impl metrics::HistogramFn for Last {
        fn record(&self, value: f64) {
            self.0.store(value.to_bits(), Ordering::Relaxed);
        }
    }

    impl Made {
        fn number(&self, key: &Key) -> Arc<AtomicU64> {
            let labels: Vec<_> =
                key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let name = format!("{}{{{}}}", key.name(), labels.join(","));
            let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(made.entry(name).or_default())
        }

        fn all(&self) -> BTreeMap<String, u64> {
            let made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            made.iter().map(|(name, number)| (name.clone(), number.load(Ordering::Relaxed))).collect()
        }
    }

    impl Recorder for Made {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.number(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.number(key))
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::new(Last(self.number(key))))
        }
    }

    fn under(recorder: &Made) -> (ConsumerMetrics, TopicMetrics, PartitionMetrics) {
        metrics::with_local_recorder(recorder, || {
            let consumer = ConsumerMetrics::new("shop", "billing");
            let _ = consumer.breaker("database");
            let (topic, partition) =
                (consumer.topic(&"orders".into()), consumer.partition(&Partition::new("orders", 3)));
            (consumer, topic, partition)
        })
    }

    #[test]
    fn every_metric_is_there_from_the_start_with_its_labels() {
        let recorder = Made::default();
        let _handles = under(&recorder);
        let all = recorder.all();
        let names: BTreeSet<&str> = all.keys().filter_map(|key| Some(key.split_once('{')?.0)).collect();
        assert_eq!(names, DESCRIPTIONS.iter().map(|(name, _)| *name).collect());
        assert!(all.keys().all(|key| key.contains("{service=shop,consumer=billing")), "{all:?}");
        for key in [
            "posthaste_consumer_assigned{service=shop,consumer=billing}",
            "posthaste_consumer_breaker_state{service=shop,consumer=billing,dependency=database}",
            "posthaste_consumer_failures_total{service=shop,consumer=billing,topic=orders,class=permanent}",
            "posthaste_consumer_lag_messages{service=shop,consumer=billing,topic=orders,partition=3}",
        ] {
            assert!(all.contains_key(key), "{key} of {all:?}");
        }
    }

    #[test]
    fn each_outcome_and_class_counts_under_its_own_name() {
        use HandledAs::{Dead, Deferred, Done, Duplicate, Skipped};
        let recorder = Made::default();
        let (_consumer, topic, _partition) = under(&recorder);
        let of = "service=shop,consumer=billing,topic=orders";
        for (outcome, messages) in [Done, Duplicate, Deferred, Dead, Skipped].into_iter().zip(1..) {
            topic.handled(outcome, messages);
            let key = format!("{HANDLED}{{{of},outcome={}}}", outcome.as_str());
            assert_eq!(recorder.all().get(&key), Some(&messages), "{key}");
        }
        for class in [ErrorClass::Transient, ErrorClass::Permanent, ErrorClass::Unknown] {
            topic.failed(class);
            let key = format!("{FAILURES}{{{of},class={}}}", class.as_str());
            assert_eq!(recorder.all().get(&key), Some(&1), "{key}");
        }
        topic.committed(Timestamp(2_000_000), Some(Timestamp(500_000)), Some(Timestamp(3_000_000)));
        topic.committed(Timestamp(i64::MAX), None, None);
        let last = |name| f64::from_bits(recorder.all()[&format!("{name}{{{of}}}")]);
        assert_eq!((last(DELIVERY_SECONDS), last(END_TO_END_SECONDS)), (1.5, 0.0));
    }

    #[test]
    fn a_partition_that_went_away_has_no_lag_here() {
        let recorder = Made::default();
        let (_consumer, _topic, partition) = under(&recorder);
        let gauges = [LAG_MESSAGES, LAG_SECONDS, IN_HAND, STOPPED, POSITION];
        for gauge in [
            &partition.lag_messages,
            &partition.lag_seconds,
            &partition.in_hand,
            &partition.stopped,
            &partition.position,
        ] {
            gauge.set(7.0);
        }
        let all = |recorder: &Made| {
            gauges.map(|name| {
                f64::from_bits(
                    recorder.all()
                        [&format!("{name}{{service=shop,consumer=billing,topic=orders,partition=3}}")],
                )
            })
        };
        assert_eq!(all(&recorder), [7.0; 5]);
        drop(partition);
        assert_eq!(all(&recorder), [0.0, 0.0, 0.0, 0.0, 7.0]);
    }
}
