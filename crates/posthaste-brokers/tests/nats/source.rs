//! JetStream as a source: the suite that every source passes, on a server of the case's own. What the suite
//! calls a topic with several partitions are several streams here, for a stream has one.

use super::*;
use async_nats::HeaderMap;
use async_trait::async_trait;
use posthaste::source::Source;
use posthaste::source::leased::{LeasedConfig, LeasedSource};
use posthaste_brokers::nats::NatsLog;
use posthaste_testkit::conformance::source::{Joining, Publication, SourceFixture};
use posthaste_testkit::leases::MemoryLeases;
use posthaste_testkit::services::require;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

struct Fixture {
    bed: Bed,
    streams: AtomicU32,
    /// The streams of each topic.
    topics: Mutex<BTreeMap<String, Vec<String>>>,
    groups: Mutex<BTreeMap<String, Arc<MemoryLeases>>>,
    members: Mutex<BTreeMap<(String, String), Arc<LeasedSource>>>,
}

async fn fixture() -> Option<Fixture> {
    let bed = require(Bed::open().await)?;
    let (streams, topics) = (AtomicU32::new(0), Mutex::default());
    Some(Fixture { bed, streams, topics, groups: Mutex::default(), members: Mutex::default() })
}

impl Fixture {
    fn leases(&self, group: &str) -> Arc<MemoryLeases> {
        Arc::clone(self.groups.lock().expect("no panic").entry(group.to_owned()).or_default())
    }

    fn streams_of(&self, topic: &str) -> Vec<String> {
        let known = self.topics.lock().expect("no panic").get(topic).cloned();
        known.unwrap_or_else(|| vec![topic.to_owned()])
    }
}

/// A key's messages are in one stream.
fn stream_of<'a>(streams: &'a [String], key: Option<&str>) -> &'a str {
    let sum: usize = key.unwrap_or_default().bytes().map(usize::from).sum();
    &streams[sum % streams.len()]
}

#[async_trait]
impl SourceFixture for Fixture {
    async fn topic(&self, partitions: u32) -> String {
        let name = format!("S{}", self.streams.fetch_add(1, Ordering::Relaxed));
        let names: Vec<String> = match partitions {
            1 => vec![name.clone()],
            _ => (0..partitions).map(|n| format!("{name}-{n}")).collect(),
        };
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
            let stream = stream_of(&streams, message.key.as_deref());
            let mut headers = HeaderMap::new();
            message.headers.iter().for_each(|(name, value)| headers.append(name.as_str(), value.as_str()));
            message.id.iter().for_each(|id| headers.insert("Message-ID", id.as_str()));
            message.key.iter().for_each(|key| headers.insert("key", key.as_str()));
            if message.payload.is_none() {
                headers.insert("Posthaste-Tombstone", "true");
            }
            let payload = message.payload.unwrap_or_default();
            let sent = self.bed.jetstream.publish_with_headers(format!("{stream}.x"), headers, payload).await;
            sent.expect("sent").await.expect("stored");
        }
    }

    async fn join(&self, group: &str, topic: &str, member: &str, how: Joining) -> Arc<dyn Source> {
        let mut plan = LeasedConfig::new(member, self.streams_of(topic));
        plan.start_from = Some(how.start_from);
        plan.lease_ttl = Duration::from_secs(2);
        plan.in_hand_max = self.in_hand_max();
        plan.stall_limit = how.stall_limit.unwrap_or(plan.stall_limit);
        let log = Arc::new(NatsLog::new(&self.bed.config()).expect("valid"));
        let source = Arc::new(LeasedSource::start(log, self.leases(group), plan));
        let key = (group.to_owned(), member.to_owned());
        self.members.lock().expect("no panic").insert(key, Arc::clone(&source));
        source
    }

    async fn kill(&self, group: &str, member: &str) {
        let key = (group.to_owned(), member.to_owned());
        self.members.lock().expect("no panic")[&key].freeze();
        self.leases(group).end(member);
    }

    fn in_hand_max(&self) -> usize {
        300
    }

    async fn remove_below(&self, topic: &str, _: i32, position: i64) -> bool {
        let stream = self.bed.jetstream.get_stream(topic).await.expect("there");
        stream.purge().sequence(position.unsigned_abs()).await.expect("purged");
        true
    }

    fn trims_headers(&self) -> bool {
        true
    }
}

posthaste_testkit::source_suite!(suite, fixture, tokio::test(flavor = "multi_thread", worker_threads = 2));
