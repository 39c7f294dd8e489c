//! JetStream without order: the suite that every source passes, on durable consumers of limits streams. What
//! the suite calls a topic with several partitions are several streams, for a stream has one queue.

use super::*;
use async_nats::HeaderMap;
use async_trait::async_trait;
use posthaste::consumer::Order;
use posthaste::source::Source;
use posthaste_brokers::GroupMember;
use posthaste_brokers::nats::NatsQueue;
use posthaste_testkit::conformance::source::{Joining, Publication, SourceFixture};
use posthaste_testkit::services::require;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

struct Fixture {
    bed: Bed,
    streams: AtomicU32,
    /// The streams of each topic.
    topics: Mutex<BTreeMap<String, Vec<String>>>,
    members: Mutex<BTreeMap<(String, String), Arc<NatsQueue>>>,
}

async fn fixture() -> Option<Fixture> {
    let bed = require(Bed::open().await)?;
    Some(Fixture { bed, streams: AtomicU32::new(0), topics: Mutex::default(), members: Mutex::default() })
}

impl Fixture {
    fn streams_of(&self, topic: &str) -> Vec<String> {
        let known = self.topics.lock().expect("no panic").get(topic).cloned();
        known.unwrap_or_else(|| vec![topic.to_owned()])
    }
}

/// What a message of the suite is on the wire.
pub(super) async fn publish(bed: &Bed, subject: String, message: Publication) {
    let mut headers = HeaderMap::new();
    message.headers.iter().for_each(|(name, value)| headers.append(name.as_str(), value.as_str()));
    message.id.iter().for_each(|id| headers.insert("Message-ID", id.as_str()));
    message.key.iter().for_each(|key| headers.insert("key", key.as_str()));
    if message.payload.is_none() {
        headers.insert("Posthaste-Tombstone", "true");
    }
    let payload = message.payload.unwrap_or_default();
    let sent = bed.jetstream.publish_with_headers(subject, headers, payload).await;
    sent.expect("sent").await.expect("stored");
}

#[async_trait]
impl SourceFixture for Fixture {
    async fn topic(&self, partitions: u32) -> String {
        let name = format!("Q{}", self.streams.fetch_add(1, Ordering::Relaxed));
        let names: Vec<String> = (0..partitions).map(|n| format!("{name}-{n}")).collect();
        for stream in &names {
            self.bed.stream(stream, &[&format!("{stream}.>")]).await;
        }
        self.topics.lock().expect("no panic").insert(name.clone(), names);
        name
    }

    async fn publish(&self, topic: &str, messages: Vec<Publication>) {
        if topic.ends_with("-later") {
            self.bed.stream(topic, &[&format!("{topic}.>")]).await;
        }
        let streams = self.streams_of(topic);
        for message in messages {
            let sum: usize = message.key.as_deref().unwrap_or_default().bytes().map(usize::from).sum();
            let stream = &streams[sum % streams.len()];
            publish(&self.bed, format!("{stream}.x"), message).await;
        }
    }

    async fn join(&self, group: &str, topic: &str, member: &str, how: Joining) -> Arc<dyn Source> {
        let mut plan = GroupMember::new(group, self.streams_of(topic));
        plan.member = Some(member.to_owned());
        plan.order = Order::None;
        plan.start_from = how.start_from;
        plan.in_hand_max = self.in_hand_max();
        plan.stall_limit = how.stall_limit.unwrap_or(plan.stall_limit);
        let config = NatsConfig { ack_wait_ms: 2_000, ..self.bed.config() };
        let source = Arc::new(NatsQueue::start(&config, &plan).expect("valid"));
        let key = (group.to_owned(), member.to_owned());
        self.members.lock().expect("no panic").insert(key, Arc::clone(&source));
        source
    }

    async fn kill(&self, group: &str, member: &str) {
        let key = (group.to_owned(), member.to_owned());
        let source = Arc::clone(&self.members.lock().expect("no panic")[&key]);
        source.freeze().await;
    }

    fn in_hand_max(&self) -> usize {
        300
    }

    fn shows_owners(&self) -> bool {
        false
    }

    async fn remove_below(&self, _: &str, _: i32, _: i64) -> bool {
        false
    }

    fn trims_headers(&self) -> bool {
        true
    }
}

posthaste_testkit::source_suite!(suite, fixture, tokio::test(flavor = "multi_thread", worker_threads = 2));
