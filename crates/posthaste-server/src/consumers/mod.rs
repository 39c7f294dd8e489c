//! Consumers as people see them: what the database knows of one, and what only its broker does.

pub(crate) mod draw;

use crate::config::{ConsumerSetting, Outbox, scrub};
use posthaste::Timestamp;
use posthaste::admin::{Problem, diagnose_consumer};
use posthaste::consumer::admin::{ConsumerPartition, ConsumerStatus};
use posthaste::source::SourceError;
use posthaste::source::log::LogPartition;
use schemars::JsonSchema;
use serde::Serialize;

/// A consumer with what its database cannot know.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownConsumer {
    /// The outbox whose database has its inbox.
    pub(crate) outbox: String,
    /// Without its partitions.
    #[serde(flatten)]
    pub(crate) status: ConsumerStatus,
    /// Its partitions.
    pub(crate) partitions: Vec<ShownPartition>,
    /// What keeps its messages from being handled, the gravest first.
    pub(crate) problems: Vec<Problem>,
    /// Why its broker could not be asked.
    pub(crate) broker_error: Option<String>,
    /// Whether its messages come from queues.
    #[serde(skip)]
    pub(crate) is_queue: bool,
}

/// A partition with what the broker and its owner say.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ShownPartition {
    #[serde(flatten)]
    pub(crate) partition: ConsumerPartition,
    /// Messages behind the position: as the broker says, or else as the owner said last.
    pub(crate) lag: Option<i64>,
    /// How old the last message before the position is, where others wait behind it: none of those is older.
    pub(crate) behind_seconds: Option<f64>,
    /// The group's position at the broker, if somebody else moved it.
    pub(crate) foreign_position: Option<i64>,
    /// Why it cannot go on without an operator.
    pub(crate) stopped: Option<String>,
}

/// What the broker says of one consumer.
#[derive(Default)]
pub(crate) struct BrokerView {
    pub(crate) logs: Vec<LogPartition>,
    /// How far the group's position may be behind without anybody having moved it.
    pub(crate) in_hand_max: i64,
    pub(crate) error: Option<String>,
    /// It has no positions, and cannot be asked about them.
    pub(crate) is_queue: bool,
}

impl BrokerView {
    /// A broker that cannot be reached is no reason to show nothing.
    pub(crate) async fn take(setting: &ConsumerSetting) -> Self {
        let in_hand_max = i64::try_from(setting.settings.in_hand_max).unwrap_or(i64::MAX);
        match crate::source::survey(setting).await {
            Ok(logs) => Self { logs, in_hand_max, ..Self::default() },
            Err(SourceError::Unsupported(_)) => Self { is_queue: true, ..Self::default() },
            Err(error) => Self { error: Some(scrub(&error.to_string())), ..Self::default() },
        }
    }

    fn log(&self, of: &ConsumerPartition) -> Option<&LogPartition> {
        let is_it =
            |log: &&LogPartition| *log.partition.topic == *of.topic && log.partition.number == of.partition;
        self.logs.iter().find(is_it)
    }

    fn foreign(&self, of: &ConsumerPartition) -> Option<i64> {
        let (ours, theirs) = (of.position?, self.log(of)?.committed?);
        (theirs > ours || theirs < ours - self.in_hand_max).then_some(theirs)
    }
}

fn behind_seconds(now: Timestamp, lag: Option<i64>, position_time: Option<Timestamp>) -> Option<f64> {
    match lag? {
        0 => Some(0.0),
        _ => Some(now.seconds_since(position_time?).max(0.0)),
    }
}

impl ShownConsumer {
    pub(crate) fn new(outbox: &Outbox, mut status: ConsumerStatus, broker: BrokerView) -> Self {
        let partitions = std::mem::take(&mut status.partitions);
        let reports = || status.processes.iter().map(|process| &process.report);
        let shown = |partition: ConsumerPartition| {
            let name = format!("{}/{}", partition.topic, partition.partition);
            let mut stopped = reports().filter_map(|report| report["stopped"].as_array()).flatten();
            let stopped = stopped.find(|pair| pair[0] == name.as_str());
            let ends = broker.log(&partition).map(|log| log.end);
            let lag = ends.zip(partition.position).map(|(end, position)| (end - position).max(0));
            let lag = lag.or_else(|| reports().find_map(|report| report["lag"][&name].as_i64()));
            ShownPartition {
                lag,
                behind_seconds: behind_seconds(status.now, lag, partition.position_time),
                foreign_position: broker.foreign(&partition),
                stopped: stopped.and_then(|pair| pair[1].as_str()).map(str::to_owned),
                partition,
            }
        };
        let partitions: Vec<ShownPartition> = partitions.into_iter().map(shown).collect();
        let lags = partitions.iter().filter_map(|shown| shown.lag);
        let lag = lags.map(|lag| lag.max(0).unsigned_abs()).reduce(u64::saturating_add);
        let problems = diagnose_consumer(&status, lag);
        let BrokerView { error: broker_error, is_queue, .. } = broker;
        Self { outbox: outbox.name.to_string(), partitions, problems, broker_error, is_queue, status }
    }
}
