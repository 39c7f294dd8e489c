//! Apache Kafka.
//!
//! Most tests share one broker and make topics of their own; those that hurt the broker have one for
//! themselves. What arrived is read by Kafka's own Java client.

mod acl;
mod calls;
mod cluster;
mod conformance;
mod examine;
mod order;
mod outage;
mod security;
mod source;
mod source_broken;
mod source_huge;
mod source_own;
mod source_place;
mod source_protocol;
mod stream;
mod topology_huge;
mod verdicts;

use crate::ground::load::{Account, Copy, Load};
use crate::ground::login::*;
use crate::ground::*;
use posthaste::event::Event;
use posthaste::sink::{Message, Scope, Sink, Verdict};
use posthaste_brokers::SinkConfig;
use posthaste_brokers::kafka::KafkaConfig;
use posthaste_testkit::services::{
    Kafka, KafkaOptions, KafkaPartition, KafkaRecord, KafkaSecurity, ServiceError,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// Where the shared broker's console is served: a test's own runtime ends with the test.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

/// The broker of all tests that do it no harm. A start that failed is not tried again by each of them.
async fn shared() -> Result<&'static Kafka, ServiceError> {
    static SHARED: OnceCell<Result<Kafka, ServiceError>> = OnceCell::const_new();
    let start = || async {
        // Compaction is to come in a moment, and not after a quarter of a minute.
        let options = KafkaOptions::default()
            .setting("message.max.bytes=8000000")
            .setting("log.cleaner.backoff.ms=100")
            // The times of groups of the newer protocol: a tenth of the broker's own.
            .setting("group.consumer.min.heartbeat.interval.ms=500")
            .setting("group.consumer.heartbeat.interval.ms=500")
            .setting("group.consumer.min.session.timeout.ms=6000")
            .setting("group.consumer.session.timeout.ms=6000");
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

/// A broker behind a proxy, and its address there.
async fn proxied() -> Result<(Kafka, KafkaConfig), ServiceError> {
    let options = KafkaOptions::default().listener("PROXIED", KafkaSecurity::Proxied);
    let kafka = Kafka::start(&options).await?;
    let config = KafkaConfig::new(&kafka.bootstrap_at("PROXIED"));
    Ok((kafka, config))
}

/// A new topic with one partition.
async fn topic(kafka: &Kafka) -> String {
    topic_with(kafka, 1, &[]).await
}

async fn topic_with(kafka: &Kafka, partitions: u32, settings: &[&str]) -> String {
    static TOPICS: AtomicU32 = AtomicU32::new(0);
    let name = format!("topic-{}", TOPICS.fetch_add(1, Ordering::Relaxed));
    let deadline = Instant::now() + DEADLINE;
    loop {
        match kafka.create_topic(&name, partitions, 1, settings).await {
            // A node that a busy machine kept from its heartbeats is fenced for a moment.
            Err(ServiceError::Failed { why, .. })
                if why.contains("are currently fenced") && Instant::now() < deadline => {}
            made => break made.expect("a topic"),
        }
    }
    name
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

/// What is in a topic, in the order of each partition.
async fn copies(kafka: &Kafka, topic: &str) -> Vec<Copy> {
    let copy = |record: KafkaRecord| Copy {
        id: record.header("Message-ID").expect("an event id"),
        key: record.key.map(|key| String::from_utf8(key).expect("text")),
        payload: record.value.unwrap_or_default(),
    };
    kafka.dump(topic).await.expect("the topic is read").into_iter().map(copy).collect()
}

/// Waits until everything that was begun is delivered, and compares it with what is at the broker.
async fn finish(load: Load, kafka: &Kafka) -> Account {
    let topic = load.destination();
    let account = load.end().await;
    account.assert_all_there_in_order(&copies(kafka, &topic).await);
    account
}
