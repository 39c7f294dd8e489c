//! Kafka in a measurement: makes the topic anew, counts what is in it, reads every id.
//!
//! The witness is a consumer of the same library, which the sink does not use. The topic is ours by another
//! one beside it. One of the same name without that is somebody's, and refused.

use super::{Arrived, Yard, YardError, YardResult};
use async_trait::async_trait;
use posthaste::envelope::KAFKA_BINDING;
use posthaste::sink::Message;
use posthaste::task::{Task, spawn};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _, StreamConsumer};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::message::{Header, Headers as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};
use serde_json::{Map, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Longest time for an answer; a topic of a few gigabytes takes a moment to delete.
const PATIENCE: Duration = Duration::from_secs(30);
/// Enough for two cores.
const PARTITIONS: i32 = 4;
/// A payload of 1 MiB has headers, too.
const MESSAGE_MAX: &str = "2097152";
/// Wanted by the client; nothing is ever committed to it.
const GROUP: &str = "posthaste-bench";
/// Between two looks at something that is on its way.
const PAUSE: Duration = Duration::from_millis(1);
const RETRY: Duration = Duration::from_millis(100);

/// A cluster, seen from outside.
pub(crate) async fn open(url: &str, destination: &str) -> YardResult<Box<dyn Yard>> {
    let ground = KafkaYard::new(url, destination, PARTITIONS);
    ground.topics().await?;
    Ok(Box::new(ground))
}

#[derive(Clone)]
pub(crate) struct KafkaYard {
    url: String,
    servers: String,
    topic: String,
    partitions: i32,
}

#[async_trait]
impl Yard for KafkaYard {
    fn sink(&self) -> Map<String, Value> {
        Map::from_iter([("type".to_owned(), "kafka".into()), ("url".to_owned(), self.url.as_str().into())])
    }

    async fn clear(&mut self, _window: Option<Duration>) -> YardResult<()> {
        let (topic, mark) = (self.topic.clone(), self.mark());
        let topics = self.topics().await?;
        if topics.contains(&topic) && !topics.contains(&mark) {
            let text =
                format!("there is a topic {topic} that was not made by `posthaste-bench`: rename it first");
            return Err(YardError::new(text));
        }
        self.create(&mark, 1).await?;
        self.delete(&topic).await?;
        self.create(&topic, self.partitions).await
    }

    async fn count(&mut self) -> YardResult<u64> {
        let ground = self.clone();
        let ends = blocking(move || ground.ends(&ground.consumer()?)).await?;
        Ok(ends.iter().map(|(_, low, high)| u64::try_from(high - low).unwrap_or(0)).sum())
    }

    async fn read_all(&mut self, seen: &mut (dyn FnMut(Uuid) + Send)) -> YardResult<()> {
        let ground = self.clone();
        blocking(move || ground.read_ids()).await?.into_iter().for_each(seen);
        Ok(())
    }

    async fn follow(self: Box<Self>, mut arrived: Arrived) -> YardResult<Task<()>> {
        let mut client = self.client("follow");
        client.set("enable.auto.commit", "false");
        let consumer: StreamConsumer = client.set("group.id", GROUP).create().map_err(YardError::new)?;
        let ground = self.clone();
        let ends = blocking(move || ground.ends(&ground.consumer()?)).await?;
        let places =
            self.places(ends.into_iter().map(|(partition, _, high)| (partition, Offset::Offset(high))))?;
        consumer.assign(&places).map_err(YardError::new)?;
        let following = async move {
            while let Ok(record) = consumer.recv().await {
                if let Some(id) = id_of(&record) {
                    arrived(id, Instant::now());
                }
            }
        };
        Ok(spawn("kafka.follow", following))
    }

    async fn client_alone(&mut self, messages: &[Message]) -> YardResult<Duration> {
        let producer = self.producer().await?;
        let started = Instant::now();
        for message in messages {
            send(&producer, message).await?;
        }
        delivered(&producer, messages.len()).await?;
        Ok(started.elapsed())
    }

    async fn remove(&mut self) -> YardResult<()> {
        let (topic, mark) = (self.topic.clone(), self.mark());
        self.delete(&topic).await?;
        self.delete(&mark).await
    }

    fn evidence(&self) -> &'static str {
        "every record's header Message-ID read from the topic"
    }
}

impl KafkaYard {
    pub(crate) fn new(url: &str, topic: &str, partitions: i32) -> Self {
        let server = |url: &str| url.trim().trim_start_matches("kafka://").trim_end_matches('/').to_owned();
        let servers = url.split(',').map(server).collect::<Vec<_>>().join(",");
        Self { url: url.to_owned(), servers, topic: topic.to_owned(), partitions }
    }

    /// A consumer that has the whole topic, from its beginning.
    pub(crate) fn reader<C: FromClientConfig + rdkafka::consumer::Consumer>(&self) -> YardResult<C> {
        let mut client = self.client("read");
        let client = client.set("group.id", GROUP).set("enable.auto.commit", "false");
        let consumer: C = client.create().map_err(YardError::new)?;
        let all = self.places((0..self.partitions).map(|partition| (partition, Offset::Beginning)))?;
        consumer.assign(&all).map_err(YardError::new)?;
        Ok(consumer)
    }

    /// Sends messages at their times, each a number of seconds after the first.
    pub(crate) async fn send_paced(
        &self,
        messages: impl Iterator<Item = (f64, Message)>,
    ) -> YardResult<usize> {
        let (producer, started, mut sent) = (self.producer().await?, Instant::now(), 0);
        for (at, message) in messages {
            let at = started + Duration::from_secs_f64(at);
            if at > Instant::now() {
                tokio::time::sleep_until(at.into()).await;
            }
            send(&producer, &message).await?;
            sent += 1;
        }
        delivered(&producer, sent).await?;
        Ok(sent)
    }

    async fn producer(&self) -> YardResult<ThreadedProducer<Counter>> {
        let producer = self
            .client("alone")
            .set("enable.idempotence", "true")
            .set("compression.type", "lz4")
            .set("partitioner", "murmur2_random")
            .set("message.max.bytes", MESSAGE_MAX)
            .create_with_context(Counter::default())
            .map_err(YardError::new)?;
        self.connect(&producer).await?;
        Ok(producer)
    }

    fn mark(&self) -> String {
        format!("{}.posthaste-bench", self.topic)
    }

    fn client(&self, purpose: &str) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.servers).set("client.id", format!("posthaste bench {purpose}"));
        client
    }

    fn consumer(&self) -> YardResult<BaseConsumer> {
        self.client("read")
            .set("group.id", GROUP)
            .set("enable.auto.commit", "false")
            .create()
            .map_err(YardError::new)
    }

    fn admin(&self) -> YardResult<AdminClient<DefaultClientContext>> {
        self.client("admin").create().map_err(YardError::new)
    }

    async fn topics(&self) -> YardResult<Vec<String>> {
        let ground = self.clone();
        blocking(move || {
            let consumer = ground.consumer()?;
            let all = consumer.fetch_metadata(None, PATIENCE);
            let all = all.map_err(|error| YardError(format!("cannot reach Kafka: {error}")))?;
            Ok(all.topics().iter().map(|topic| topic.name().to_owned()).collect())
        })
        .await
    }

    async fn create(&self, topic: &str, partitions: i32) -> YardResult<()> {
        let (admin, started) = (self.admin()?, Instant::now());
        let wanted = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let wanted = wanted.set("max.message.bytes", MESSAGE_MAX);
        loop {
            let made = admin.create_topics([&wanted], &AdminOptions::new()).await.map_err(YardError::new)?;
            match made.into_iter().next() {
                Some(Err((_, Code::TopicAlreadyExists))) if topic == self.mark() => break,
                // The one that was deleted is still going.
                Some(Err((_, Code::TopicAlreadyExists))) if started.elapsed() < PATIENCE => {
                    tokio::time::sleep(RETRY).await;
                }
                Some(Err((_, code))) => return Err(YardError(format!("no topic {topic}: {code}"))),
                Some(Ok(_)) | None => break,
            }
        }
        while self.leaderless(topic).await? {
            if started.elapsed() > PATIENCE {
                return Err(YardError(format!("topic {topic} has no leader")));
            }
            tokio::time::sleep(RETRY).await;
        }
        Ok(())
    }

    async fn leaderless(&self, topic: &str) -> YardResult<bool> {
        let (ground, topic) = (self.clone(), topic.to_owned());
        blocking(move || {
            let found = ground.consumer()?.fetch_metadata(Some(&topic), PATIENCE).map_err(YardError::new)?;
            let partitions = found.topics().first().map(|topic| topic.partitions()).unwrap_or_default();
            Ok(partitions.is_empty() || partitions.iter().any(|partition| partition.leader() < 0))
        })
        .await
    }

    async fn delete(&self, topic: &str) -> YardResult<()> {
        let admin = self.admin()?;
        let gone = admin.delete_topics(&[topic], &AdminOptions::new()).await.map_err(YardError::new)?;
        match gone.into_iter().next() {
            Some(Err((_, code))) if code != Code::UnknownTopicOrPartition => {
                Err(YardError(format!("topic {topic} cannot be deleted: {code}")))
            }
            _ => Ok(()),
        }
    }

    /// Partition, first and next offset.
    fn ends(&self, consumer: &BaseConsumer) -> YardResult<Vec<(i32, i64, i64)>> {
        let until = Instant::now() + PATIENCE;
        let end = |partition| loop {
            match consumer.fetch_watermarks(&self.topic, partition, PATIENCE) {
                Ok((low, high)) => return Ok((partition, low, high)),
                // The topic was made a moment ago, and its leader has not heard of it.
                Err(error)
                    if error.rdkafka_error_code() == Some(Code::NotLeaderForPartition)
                        && Instant::now() < until =>
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(YardError::new(error)),
            }
        };
        (0..self.partitions).map(end).collect()
    }

    fn places(&self, offsets: impl Iterator<Item = (i32, Offset)>) -> YardResult<TopicPartitionList> {
        let mut places = TopicPartitionList::new();
        for (partition, place) in offsets {
            places.add_partition_offset(&self.topic, partition, place).map_err(YardError::new)?;
        }
        Ok(places)
    }

    fn read_ids(&self) -> YardResult<Vec<Uuid>> {
        let consumer: BaseConsumer = self.reader()?;
        let left: i64 = self.ends(&consumer)?.iter().map(|(_, low, high)| high - low).sum();
        let mut ids = Vec::with_capacity(usize::try_from(left).unwrap_or(0));
        for _ in 0..left {
            let record =
                consumer.poll(PATIENCE).ok_or_else(|| YardError::new("the topic does not answer"))?;
            let record = record.map_err(YardError::new)?;
            ids.push(id_of(&record).ok_or_else(|| YardError::new("a record without an id"))?);
        }
        Ok(ids)
    }

    /// Until the producer knows the topic.
    async fn connect(&self, producer: &ThreadedProducer<Counter>) -> YardResult<()> {
        let (client, topic) = (producer.clone(), self.topic.clone());
        blocking(move || {
            client.client().fetch_metadata(Some(&topic), PATIENCE).map(drop).map_err(YardError::new)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> YardResult<T> + Send + 'static) -> YardResult<T> {
    tokio::task::spawn_blocking(work).await.map_err(YardError::new)?
}

fn id_of(record: &impl rdkafka::Message) -> Option<Uuid> {
    let headers = record.headers()?;
    let id = headers.iter().find(|header| header.key == "Message-ID")?;
    Uuid::parse_str(std::str::from_utf8(id.value?).ok()?).ok()
}

/// What one would write by hand, with the headers that the sink writes.
async fn send(producer: &ThreadedProducer<Counter>, message: &Message) -> YardResult<()> {
    let mut headers = Some(OwnedHeaders::new_with_capacity(6));
    message.each_header_for(KAFKA_BINDING, |key, value| {
        headers = headers.take().map(|headers| headers.insert(Header { key, value: Some(value) }));
    });
    let mut record = BaseRecord {
        topic: message.destination.as_str(),
        partition: None,
        payload: message.payload.as_deref(),
        key: message.partition_key(),
        timestamp: None,
        headers,
        delivery_opaque: (),
    };
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((error, again)) if error.rdkafka_error_code() == Some(Code::QueueFull) => {
                record = again;
                tokio::time::sleep(PAUSE).await;
            }
            Err((error, _)) => return Err(YardError::new(error)),
        }
    }
}

/// Waits for the acknowledgements of so many messages.
async fn delivered(producer: &ThreadedProducer<Counter>, messages: usize) -> YardResult<()> {
    let (counter, started) = (producer.context(), Instant::now());
    while counter.delivered() < messages {
        if counter.failed.load(Ordering::Relaxed) > 0 || started.elapsed() > 10 * PATIENCE {
            return Err(YardError::new("the client alone did not deliver everything"));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

#[derive(Default)]
struct Counter {
    delivered: AtomicUsize,
    failed: AtomicUsize,
}

impl Counter {
    fn delivered(&self) -> usize {
        self.delivered.load(Ordering::Relaxed)
    }
}

impl ClientContext for Counter {}

impl ProducerContext for Counter {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let counter = if result.is_ok() { &self.delivered } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
