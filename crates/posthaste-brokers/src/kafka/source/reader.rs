//! Reading topics without joining the group: for questions of people, and for range replays. Nothing is
//! committed. The group's name is only used to ask where it is.

use super::client::{self, GroupEars, KafkaClient, bounds, committed, listed};
use crate::kafka::cause::{self, Causes};
use crate::kafka::{KafkaConfig, check_name};
use crate::lock::locked;
use crate::{BuildError, GroupMember};
use async_trait::async_trait;
use posthaste::Timestamp;
use posthaste::source::log::{LogPage, LogPartition, LogReader};
use posthaste::source::{Partition, SourceError};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::Message as _;
use rdkafka::topic_partition_list::Offset;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a question to the brokers may take, the first connection included.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a read waits for the next record.
const SILENCE: Duration = Duration::from_secs(15);
/// Bytes of one page.
const PAGE_BYTES: usize = 4 << 20;

/// Reads topics, and sees where one group is.
pub struct KafkaReader(Arc<ReaderClient>);

struct ReaderClient {
    config: KafkaConfig,
    client: KafkaClient,
    causes: Arc<Causes>,
    /// What the client reads on with.
    at: Mutex<Option<(Partition, i64)>>,
}

impl std::fmt::Debug for KafkaReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaReader").finish_non_exhaustive()
    }
}

impl KafkaReader {
    /// Checks the configuration. A broker that is down is no error yet.
    pub fn new(config: &KafkaConfig, group: &str) -> Result<Self, BuildError> {
        config.check()?;
        let causes = Arc::<Causes>::default();
        let ears = GroupEars::new(&GroupMember::new(group, [""; 0]), Arc::clone(&causes));
        let client = KafkaClient::from_config_and_context(&config.consumer(group, "posthaste")?, ears);
        let client = client.map_err(|error| BuildError::option("type", error.to_string()))?;
        let at = Mutex::default();
        Ok(Self(Arc::new(ReaderClient { config: config.clone(), client, causes, at })))
    }

    /// Asks away from the runtime's threads.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&ReaderClient) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let reader = Arc::clone(&self.0);
        let asked = tokio::task::spawn_blocking(move || question(&reader)).await;
        asked.unwrap_or_else(|died| Err(SourceError::Transient(died.to_string())))
    }
}

impl ReaderClient {
    /// An error, with the reason that the client gave beside it.
    fn transient(&self, error: &KafkaError) -> SourceError {
        // The client's complaints are heard by its poll.
        let _ = self.client.poll(Duration::ZERO);
        let cause = self.causes.current(&self.config).map(|failure| failure.message.to_string());
        SourceError::Transient(cause.unwrap_or_else(|| error.to_string()))
    }

    fn told<T>(&self, answer: KafkaResult<T>) -> Result<T, SourceError> {
        answer.map_err(|error| self.transient(&error))
    }

    fn partitions(&self, topic: &str) -> Result<Vec<Partition>, SourceError> {
        check_name(topic).map_err(|why| SourceError::Fatal(why.to_owned()))?;
        let metadata = self.told(self.client.fetch_metadata(Some(topic), ANSWER))?;
        let found = metadata.topics().first();
        match found.and_then(|topic| topic.error()).map(Code::from) {
            None => {}
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => return Ok(Vec::new()),
            Some(code) => {
                let words = cause::of_code(topic, code, &self.config.identity()).message;
                return Err(SourceError::Transient(words.to_string()));
            }
        }
        let numbers =
            found.map_or(&[][..], |topic| topic.partitions()).iter().map(|partition| partition.id());
        let mut partitions: Vec<_> = numbers.map(|number| Partition::new(topic, number)).collect();
        partitions.sort();
        Ok(partitions)
    }

    fn survey(&self, topics: &[String]) -> Result<Vec<LogPartition>, SourceError> {
        let mut partitions = Vec::new();
        for topic in topics {
            partitions.extend(self.partitions(topic)?);
        }
        let bounds = self.told(bounds(&self.client, &partitions, ANSWER))?;
        // Without the right to see the group, the logs are still seen.
        let positions = committed(&self.client, &partitions, ANSWER).unwrap_or_default();
        let log_id: Option<Arc<str>> = self.client.client().fetch_cluster_id(ANSWER).map(Into::into);
        let seen = |(partition, (first, end)): (Partition, (i64, i64))| LogPartition {
            committed: positions.get(&partition).copied().flatten(),
            log_id: log_id.clone(),
            partition,
            first,
            end,
        };
        Ok(bounds.into_iter().map(seen).collect())
    }

    fn read(&self, partition: &Partition, range: &Range<i64>, limit: usize) -> Result<LogPage, SourceError> {
        // Emptied for the time of the read: whoever fails begins anew.
        let mut at = locked(&self.at);
        if at.take() != Some((partition.clone(), range.start)) {
            let list = listed([(partition, Offset::Offset(range.start))]);
            self.told(self.client.assign(&list))?;
        }
        let (mut page, mut bytes) = (LogPage { deliveries: Vec::new(), next: range.start }, 0);
        let topics = [Arc::clone(&partition.topic)];
        let mut patience = Instant::now() + SILENCE;
        while page.next < range.end && page.deliveries.len() < limit && bytes < PAGE_BYTES {
            match self.client.poll(Duration::from_millis(100)) {
                Some(Ok(record)) if record.offset() < range.end => {
                    page.next = record.offset() + 1;
                    let delivery = client::read(&record, &topics);
                    bytes += delivery.message.bytes();
                    page.deliveries.push(delivery);
                    patience = Instant::now() + SILENCE;
                }
                // Behind the range, or at the end of the log: what is missing before it is no message.
                Some(Ok(_) | Err(KafkaError::PartitionEOF(_))) => page.next = range.end,
                Some(Err(error)) if matches!(error.rdkafka_error_code(), Some(Code::AutoOffsetReset)) => {
                    let text = format!("{partition} has no position {} any more", page.next);
                    return Err(SourceError::Transient(text));
                }
                Some(Err(error)) if Instant::now() >= patience => return Err(self.transient(&error)),
                None if Instant::now() >= patience => {
                    let silent = KafkaError::MessageConsumption(Code::OperationTimedOut);
                    return Err(self.transient(&silent));
                }
                // An outage that passes.
                Some(Err(_)) | None => {}
            }
        }
        *at = Some((partition.clone(), page.next));
        Ok(page)
    }
}

#[async_trait]
impl LogReader for KafkaReader {
    async fn survey(&self, topics: &[String]) -> Result<Vec<LogPartition>, SourceError> {
        let topics = topics.to_vec();
        self.ask(move |reader| reader.survey(&topics)).await
    }

    async fn position_at(&self, partition: &Partition, time: Timestamp) -> Result<i64, SourceError> {
        let partition = partition.clone();
        let question = move |reader: &ReaderClient| {
            let client = &reader.client;
            if let Some(position) = reader.told(client::position_at(client, &partition, time, ANSWER))? {
                return Ok(position);
            }
            let bounds = reader.told(bounds(client, std::slice::from_ref(&partition), ANSWER))?;
            Ok(bounds.get(&partition).map_or(0, |(_, end)| *end))
        };
        self.ask(question).await
    }

    async fn read(
        &self,
        partition: &Partition,
        range: Range<i64>,
        limit: usize,
    ) -> Result<LogPage, SourceError> {
        let partition = partition.clone();
        self.ask(move |reader| reader.read(&partition, &range, limit)).await
    }
}
