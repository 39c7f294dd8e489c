//! Consumers as people see them: what the database knows of one, and what only its broker does.

use crate::config::{ConsumerSetting, Outbox, scrub};
use posthaste::consumer::admin::{ConsumerPartition, ConsumerStatus};
use posthaste::source::log::LogPartition;
use serde::Serialize;
use serde_json::Value;

/// A consumer with what its database cannot know.
pub(crate) struct ShownConsumer {
    pub(crate) outbox: String,
    /// Without its partitions.
    pub(crate) status: ConsumerStatus,
    pub(crate) partitions: Vec<ShownPartition>,
    /// Why its broker could not be asked.
    pub(crate) broker_error: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct ShownPartition {
    #[serde(flatten)]
    pub(crate) partition: ConsumerPartition,
    /// Messages behind the position: as the broker says, or else as the owner said last.
    pub(crate) lag: Option<i64>,
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
}

impl BrokerView {
    /// A broker that cannot be reached is no reason to show nothing.
    pub(crate) async fn take(setting: &ConsumerSetting) -> Self {
        let in_hand_max = i64::try_from(setting.settings.in_hand_max).unwrap_or(i64::MAX);
        match crate::source::survey(setting).await {
            Ok(logs) => Self { logs, in_hand_max, error: None },
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
            ShownPartition {
                lag: lag.or_else(|| reports().find_map(|report| report["lag"][&name].as_i64())),
                foreign_position: broker.foreign(&partition),
                stopped: stopped.and_then(|pair| pair[1].as_str()).map(str::to_owned),
                partition,
            }
        };
        let partitions = partitions.into_iter().map(shown).collect();
        Self { outbox: outbox.name.to_string(), partitions, broker_error: broker.error, status }
    }

    pub(crate) fn json(&self) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(&self.status)?;
        value["outbox"] = self.outbox.as_str().into();
        value["partitions"] = serde_json::to_value(&self.partitions)?;
        value["broker_error"] = self.broker_error.as_deref().into();
        Ok(value)
    }
}
