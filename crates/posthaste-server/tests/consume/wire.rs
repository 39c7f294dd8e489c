//! The broker between a producer and the consumers, from a producer's side.

use posthaste_sqlite::broker::{Broker, BrokerConfig, Outgoing};
#[cfg(feature = "redis")]
use posthaste_testkit::services::Redis;
#[cfg(feature = "kafka")]
use posthaste_testkit::services::{ForeignRecord, Kafka};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A message on its way.
pub(crate) struct Parcel<'a> {
    pub(crate) id: Option<String>,
    pub(crate) key: String,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) payload: String,
}

/// A message where it lies.
pub(crate) struct Lying {
    pub(crate) partition: i32,
    pub(crate) position: i64,
    pub(crate) id: Option<String>,
}

/// A topic of a broker.
pub(crate) enum Wire {
    Local(Arc<Broker>),
    #[cfg(feature = "kafka")]
    Kafka(&'static Kafka),
    /// One that a test restarts.
    #[cfg(feature = "kafka")]
    OwnKafka(Arc<tokio::sync::RwLock<Kafka>>),
    /// A queue behind the outbox. Nothing lies there that has a position.
    #[cfg(any(feature = "rabbitmq", feature = "redis"))]
    Queue,
    /// A stream.
    #[cfg(feature = "redis")]
    Redis(Arc<Redis>),
    /// A stream, and the subject behind its name that it takes: `STREAM.in`.
    #[cfg(feature = "nats")]
    Nats(Box<async_nats::jetstream::Context>),
}

impl Wire {
    /// The local broker in this file.
    pub(crate) fn local(file: &Path) -> Self {
        // A second message with the same id is a message.
        let config = BrokerConfig { partitions: 2, dedup_window: Duration::ZERO, ..BrokerConfig::new(file) };
        Self::Local(Broker::open(config).expect("the broker's file opens"))
    }

    /// A stream of its own, and the one for its dead letters. Answers with the stream's name as well.
    #[cfg(feature = "nats")]
    pub(crate) async fn on_nats(nats: &posthaste_testkit::services::Nats) -> (Self, String) {
        let client = async_nats::connect(nats.url()).await.expect("the test's own client connects");
        let jetstream = async_nats::jetstream::new(client);
        let topic = format!("orders-{}", uuid::Uuid::now_v7().simple());
        for (name, subject) in [(topic.clone(), "in"), (format!("{topic}-dead"), "dead")] {
            let subjects = vec![format!("{topic}.{subject}")];
            let config = async_nats::jetstream::stream::Config { name, subjects, ..Default::default() };
            jetstream.create_stream(config).await.expect("a stream");
        }
        (Self::Nats(Box::new(jetstream)), topic)
    }

    pub(crate) async fn send(&self, topic: &str, parcels: Vec<Parcel<'_>>) {
        match self {
            Self::Local(broker) => {
                let messages = parcels.into_iter().map(|parcel| Outgoing {
                    topic: topic.to_owned(),
                    id: parcel.id,
                    key: Some(parcel.key.into_bytes().into()),
                    headers: texts(parcel.headers).collect(),
                    payload: Some(parcel.payload.into_bytes().into()),
                });
                broker.publish(messages.collect()).await.expect("published");
            }
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => send(kafka, topic, parcels).await,
            #[cfg(feature = "kafka")]
            Self::OwnKafka(kafka) => send(&*kafka.read().await, topic, parcels).await,
            #[cfg(any(feature = "rabbitmq", feature = "redis"))]
            Self::Queue => panic!("{topic}: its messages come over the outbox"),
            #[cfg(feature = "redis")]
            Self::Redis(server) => add_to_stream(server, topic, parcels),
            #[cfg(feature = "nats")]
            Self::Nats(jetstream) => send_to_stream(jetstream, topic, parcels).await,
        }
    }

    /// Where the group is that has the topic's name.
    pub(crate) async fn committed(&self, topic: &str) -> BTreeMap<i32, i64> {
        match self {
            Self::Local(broker) => {
                let groups = broker.groups().await.expect("groups").into_iter();
                let of_topic = groups.filter(|place| place.group == topic && place.topic == topic);
                of_topic.map(|place| (place.partition, place.committed)).collect()
            }
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => committed(kafka, topic).await,
            #[cfg(feature = "kafka")]
            Self::OwnKafka(kafka) => committed(&*kafka.read().await, topic).await,
            #[cfg(any(feature = "rabbitmq", feature = "redis"))]
            Self::Queue => BTreeMap::new(),
            // A plain log knows no groups.
            #[cfg(feature = "redis")]
            Self::Redis(_) => BTreeMap::new(),
            #[cfg(feature = "nats")]
            Self::Nats(_) => BTreeMap::new(),
        }
    }

    /// Everything that lies in the topic.
    pub(crate) async fn lying(&self, topic: &str) -> Vec<Lying> {
        match self {
            Self::Local(broker) => {
                let mut lying = Vec::new();
                for partition in 0..2 {
                    let stored = broker.read(topic, partition, 0, 100_000).await.expect("read");
                    let place = |(position, id)| Lying { partition, position, id };
                    lying
                        .extend(stored.into_iter().map(|stored| place((stored.position, stored.message.id))));
                }
                lying
            }
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => lying(kafka, topic).await,
            #[cfg(feature = "kafka")]
            Self::OwnKafka(kafka) => lying(&*kafka.read().await, topic).await,
            #[cfg(any(feature = "rabbitmq", feature = "redis"))]
            Self::Queue => Vec::new(),
            #[cfg(feature = "redis")]
            Self::Redis(server) => entries(server, topic),
            #[cfg(feature = "nats")]
            Self::Nats(jetstream) => lying_in_stream(jetstream, topic).await,
        }
    }
}

#[cfg(feature = "kafka")]
async fn send(kafka: &Kafka, topic: &str, parcels: Vec<Parcel<'_>>) {
    let records = parcels.into_iter().map(|parcel| {
        let id = parcel.id.map(|id| ("Message-ID".to_owned(), id));
        let headers = texts(parcel.headers).chain(id);
        ForeignRecord {
            key: Some(parcel.key.into_bytes()),
            value: Some(parcel.payload.into_bytes()),
            headers: headers.map(|(name, value)| (name, Some(value.into_bytes()))).collect(),
        }
    });
    kafka.send(topic, &records.collect::<Vec<_>>(), None).await.expect("published");
}

#[cfg(feature = "kafka")]
async fn lying(kafka: &Kafka, topic: &str) -> Vec<Lying> {
    let records = kafka.dump(topic).await.expect("the Java client reads");
    let place = records.into_iter().map(|record| Lying {
        partition: record.partition,
        position: record.offset,
        id: record.header("Message-ID"),
    });
    place.collect()
}

#[cfg(feature = "redis")]
fn add_to_stream(server: &Redis, stream: &str, parcels: Vec<Parcel<'_>>) {
    let entries = parcels.into_iter().map(|parcel| {
        let mut fields = vec!["key".to_owned(), parcel.key, "payload".to_owned(), parcel.payload];
        fields.extend(parcel.id.into_iter().flat_map(|id| ["id".to_owned(), id]));
        fields.extend(texts(parcel.headers).flat_map(|(name, value)| [format!("h:{name}"), value]));
        fields
    });
    let entries = serde_json::Value::from_iter(entries).to_string();
    let add = "for _, fields in ipairs(cjson.decode(ARGV[1])) do redis.call('XADD', KEYS[1], '*', unpack(fields)) end";
    let said = server.cli(&["EVAL", add, "1", stream, &entries]).expect("redis-cli runs");
    assert_eq!(said, "", "published");
}

/// The client writes a line for each id of an entry, each name of a field and each value. What a position is
/// made of stands in docs/consumers/redis.md.
#[cfg(feature = "redis")]
fn entries(server: &Redis, stream: &str) -> Vec<Lying> {
    let said = server.cli(&["XRANGE", stream, "-", "+"]).expect("redis-cli runs");
    let (mut lying, mut lines) = (Vec::<Lying>::new(), said.lines());
    while let Some(line) = lines.next() {
        let place = line
            .split_once('-')
            .and_then(|(ms, seq)| Some((ms.parse::<i64>().ok()? << 20) + seq.parse::<i64>().ok()?));
        match (place, lying.last_mut()) {
            (Some(position), _) => lying.push(Lying { partition: 0, position, id: None }),
            (None, Some(last)) if line == "id" => last.id = lines.next().map(str::to_owned),
            _ => {}
        }
    }
    lying
}

#[cfg(feature = "nats")]
async fn send_to_stream(jetstream: &async_nats::jetstream::Context, stream: &str, parcels: Vec<Parcel<'_>>) {
    let mut sent = Vec::new();
    for parcel in parcels {
        let mut headers = async_nats::HeaderMap::new();
        parcel.headers.iter().for_each(|(name, value)| headers.append(*name, *value));
        parcel.id.iter().for_each(|id| headers.insert("Message-ID", id.as_str()));
        headers.insert("key", parcel.key.as_str());
        let subject = format!("{stream}.in");
        let publishing = jetstream.publish_with_headers(subject, headers, parcel.payload.into());
        sent.push(publishing.await.expect("sent"));
    }
    for stored in sent {
        stored.await.expect("published");
    }
}

#[cfg(feature = "nats")]
async fn lying_in_stream(jetstream: &async_nats::jetstream::Context, stream: &str) -> Vec<Lying> {
    let mut stream = jetstream.get_stream(stream).await.expect("the stream is there");
    let state = stream.info().await.expect("its state").state.clone();
    let mut lying = Vec::new();
    for sequence in state.first_sequence..=state.last_sequence {
        let Ok(message) = stream.get_raw_message(sequence).await else { continue };
        let id = message.headers.get("Message-ID").map(|id| id.as_str().to_owned());
        lying.push(Lying { partition: 0, position: i64::try_from(sequence).expect("small"), id });
    }
    lying
}

fn texts<'a>(headers: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = (String, String)> + 'a {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
}

#[cfg(feature = "kafka")]
async fn committed(kafka: &Kafka, topic: &str) -> BTreeMap<i32, i64> {
    let positions = kafka.committed(topic).await.expect("the Java client sees the group");
    positions.into_iter().map(|((_, partition), position)| (partition, position)).collect()
}
