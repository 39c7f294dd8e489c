//! Questions about topics: their settings and their partitions.

use crate::kafka::KafkaConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, OwnedResourceSpecifier, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The settings of a topic that matter to us.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::kafka) struct Settings {
    pub(in crate::kafka) min_insync_replicas: usize,
    pub(in crate::kafka) max_message_bytes: usize,
    pub(in crate::kafka) unclean_election: bool,
    /// How long messages are kept. `None` is for ever.
    pub(in crate::kafka) retention: Option<Duration>,
}

/// A topic's partitions, as far as its messages depend on them.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::kafka) struct Partitions {
    pub(in crate::kafka) all: usize,
    pub(in crate::kafka) without_leader: usize,
    /// Replicas in sync and all replicas, of the partition with the fewest in sync.
    pub(in crate::kafka) in_sync: usize,
    pub(in crate::kafka) replicas: usize,
    /// Fewest replicas of a partition.
    pub(in crate::kafka) replicas_min: usize,
}

/// The settings of topics, or why they cannot be seen. The right to see them is not needed for delivery.
pub(in crate::kafka) async fn settings(
    config: &KafkaConfig,
    topics: &[String],
    within: Duration,
) -> Result<BTreeMap<String, Result<Settings, String>>, String> {
    let client = QuestionClient::start(config)?;
    let options = AdminOptions::new().request_timeout(Some(within));
    let resources: Vec<_> = topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
    let answer = tokio::time::timeout(within, client.admin().describe_configs(&resources, &options)).await;
    let found = answer.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
    Ok(topics.iter().cloned().zip(found.iter().map(read)).collect())
}

/// A client for questions. Dropping it waits for its threads. So no thread of the runtime may drop it, not
/// even when whoever asked has stopped waiting.
pub(in crate::kafka) struct QuestionClient(pub(in crate::kafka) Option<AdminClient<DefaultClientContext>>);

impl QuestionClient {
    pub(in crate::kafka) fn start(config: &KafkaConfig) -> Result<Self, String> {
        let connection = config.connection("questions").map_err(|error| error.to_string())?;
        connection.create().map(|client| Self(Some(client))).map_err(|error: KafkaError| error.to_string())
    }

    pub(in crate::kafka) fn admin(&self) -> &AdminClient<DefaultClientContext> {
        // Only whoever owns it takes it, at its end.
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for QuestionClient {
    fn drop(&mut self) {
        let client = self.0.take();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(client))),
            Err(_) => drop(client),
        }
    }
}

fn read(found: &Result<ConfigResource, RDKafkaErrorCode>) -> Result<Settings, String> {
    let found = found.as_ref().map_err(ToString::to_string)?;
    debug_assert!(matches!(found.specifier, OwnedResourceSpecifier::Topic(_)), "only topics are asked for");
    let value = |name: &str| found.get(name).and_then(|entry| entry.value.as_deref());
    let number = |name: &str| value(name).and_then(|text| text.parse().ok());
    Ok(Settings {
        min_insync_replicas: number("min.insync.replicas").unwrap_or(1),
        max_message_bytes: number("max.message.bytes").unwrap_or(usize::MAX),
        unclean_election: value("unclean.leader.election.enable") == Some("true"),
        retention: value("retention.ms").and_then(|text| text.parse().ok()).map(Duration::from_millis),
    })
}

/// The partitions of a topic, or the error that the broker has for it.
pub(in crate::kafka) type PartitionsResult = Result<Partitions, RDKafkaErrorCode>;

/// The partitions of topics, as far as a broker answers in time. `metadata` asks about one topic.
pub(in crate::kafka) async fn partitions(
    metadata: impl Fn(&str, Duration) -> KafkaResult<Metadata> + Send + 'static,
    topics: &[String],
    within: Duration,
) -> BTreeMap<String, PartitionsResult> {
    let (topics, until) = (topics.to_vec(), Instant::now() + within);
    let asked = tokio::task::spawn_blocking(move || {
        let mut found = BTreeMap::new();
        for topic in topics {
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let Ok(metadata) = metadata(&topic, left) else { break };
            if let Some(state) = metadata.topics().first() {
                found.insert(topic, state_of(state));
            }
        }
        found
    });
    asked.await.unwrap_or_default()
}

fn state_of(topic: &MetadataTopic) -> PartitionsResult {
    let error = topic.error().unwrap_or(RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR);
    let partitions = topic.partitions();
    // If a partition has no leader, the whole topic bears that error too.
    if error != RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR && partitions.is_empty() {
        return Err(error.into());
    }
    let worst = partitions.iter().min_by_key(|partition| partition.isr().len());
    Ok(Partitions {
        all: partitions.len(),
        without_leader: partitions.iter().filter(|partition| partition.leader() < 0).count(),
        in_sync: worst.map_or(0, |partition| partition.isr().len()),
        replicas: worst.map_or(0, |partition| partition.replicas().len()),
        replicas_min: partitions.iter().map(|partition| partition.replicas().len()).min().unwrap_or(0),
    })
}
