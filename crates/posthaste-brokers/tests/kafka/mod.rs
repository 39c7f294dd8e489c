//! Apache Kafka.
//!
//! Most tests share one broker and make topics of their own; those that hurt the broker have one for themselves. What
//! arrived is read by Kafka's own Java client.

mod acl;
mod calls;
mod cluster;
mod conformance;
mod examine;
mod load;
mod order;
mod outage;
mod security;
mod stream;
mod verdicts;
mod yard;

use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::sink::{Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_brokers::kafka::KafkaConfig;
use posthaste_testkit::services::{Kafka, KafkaOptions, ServiceError};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// Ends a hang; nothing is timed by it.
const DEADLINE: Duration = Duration::from_secs(60);

/// Where the shared broker's console is served: a test's own runtime ends with the test.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

/// The broker of all tests that do it no harm. A start that failed is not tried again by each of them.
async fn shared() -> Result<&'static Kafka, ServiceError> {
    static SHARED: OnceCell<Result<Kafka, ServiceError>> = OnceCell::const_new();
    let start = || async {
        let options = KafkaOptions::default().setting("message.max.bytes=8000000");
        tokio::task::spawn_blocking(move || RUNTIME.block_on(Kafka::start(&options))).await.expect("no panic")
    };
    SHARED.get_or_init(start).await.as_ref().map_err(Clone::clone)
}

fn config(kafka: &Kafka) -> KafkaConfig {
    KafkaConfig::new(&kafka.bootstrap())
}

async fn build(config: KafkaConfig) -> Arc<dyn Sink> {
    SinkConfig::Kafka(Box::new(config)).build("test").await.expect("a valid configuration")
}

/// A new topic with one partition.
async fn topic(kafka: &Kafka) -> String {
    topic_with(kafka, 1, &[]).await
}

async fn topic_with(kafka: &Kafka, partitions: u32, settings: &[&str]) -> String {
    static TOPICS: AtomicU32 = AtomicU32::new(0);
    let name = format!("topic-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
    kafka.create_topic(&name, partitions, 1, settings).await.expect("a topic");
    name
}

fn message(topic: &str, event: Event) -> Message {
    let payload = event.payload.clone();
    let stored =
        StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(1_700_000_000_000_000), event, defect: None };
    Message {
        stored,
        destination: topic.to_owned(),
        payload,
        ordered: true,
        source: "shop".into(),
        envelope: Default::default(),
        partition_key: None,
    }
}

/// Without a key.
fn loose(topic: &str) -> Message {
    message(topic, Event::new("orders.placed", "{}"))
}

fn keyed(topic: &str, key: &str) -> Message {
    message(topic, Event::new("orders.placed", "{}").with_key(key))
}

/// With a number that can be read back.
fn numbered(topic: &str, key: &str, number: usize) -> Message {
    message(topic, Event::new("orders.placed", number.to_string()).with_key(key))
}

/// Bytes that no compressor makes smaller.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// The verdict of one message.
async fn publish_one(sink: &Arc<dyn Sink>, message: Message) -> Verdict {
    let mut verdicts = sink.publish(&[message]).await;
    assert_eq!(verdicts.len(), 1);
    verdicts.remove(0)
}

/// Kind, code, scope and words of a verdict that is not `Delivered`.
fn seen(verdict: &Verdict) -> (&'static str, &str, Scope, &str) {
    let (kind, failure) = match verdict {
        Verdict::Retry(failure) => ("retry", failure),
        Verdict::Rejected(failure) => ("rejected", failure),
        Verdict::Unknown(failure) => ("unknown", failure),
        other => panic!("{other:?} has no failure"),
    };
    (kind, &failure.code, failure.scope, &failure.message)
}

#[track_caller]
fn assert_seen(verdict: &Verdict, kind: &str, code: &str, scope: Scope) {
    let found = seen(verdict);
    assert_eq!((found.0, found.1, found.2), (kind, code, scope), "{verdict:?}");
}

#[track_caller]
fn assert_delivered(verdicts: &[Verdict]) {
    let other = verdicts.iter().find(|verdict| **verdict != Verdict::Delivered);
    assert_eq!(other, None);
}

/// Publishes a new message again and again until one is delivered, as the relay would after an outage.
async fn until_delivered(sink: &Arc<dyn Sink>, topic: &str, within: Duration) {
    let started = Instant::now();
    loop {
        let verdict = publish_one(sink, loose(topic)).await;
        if verdict == Verdict::Delivered {
            break;
        }
        assert!(started.elapsed() < DEADLINE, "still {verdict:?}");
    }
    assert!(started.elapsed() < within, "delivered only after {:?}", started.elapsed());
}

/// The numbers that are in a topic, in order, with their keys.
async fn numbers(kafka: &Kafka, topic: &str) -> Vec<(String, usize)> {
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8(bytes.clone().unwrap_or_default()).expect("text");
    let records = kafka.dump(topic).await.expect("the topic is read");
    let number = |record| text(record).parse().expect("a number");
    records.iter().map(|record| (text(&record.key), number(&record.value))).collect()
}
