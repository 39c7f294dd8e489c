//! Redis Streams as a source: the suite that every source passes, on a server of the case's own. What the
//! suite calls a topic with several partitions are several streams here, for a stream has one.

use super::*;
use async_trait::async_trait;
use posthaste::source::Source;
use posthaste::source::leased::{LeasedConfig, LeasedSource};
use posthaste_brokers::redis::RedisLog;
use posthaste_testkit::conformance::source::{Joining, Publication, SourceFixture};
use posthaste_testkit::leases::MemoryLeases;
use posthaste_testkit::services::require;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

struct Fixture {
    bed: Bed,
    topics: Mutex<BTreeMap<String, Vec<String>>>,
    count: AtomicU32,
    groups: Mutex<BTreeMap<String, Arc<MemoryLeases>>>,
    members: Mutex<BTreeMap<(String, String), Arc<LeasedSource>>>,
}

async fn fixture() -> Option<Fixture> {
    let bed = require(Bed::open().await)?;
    let (topics, count) = (Mutex::default(), AtomicU32::new(0));
    Some(Fixture { bed, topics, count, groups: Mutex::default(), members: Mutex::default() })
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
pub(super) fn stream_of<'a>(streams: &'a [String], key: Option<&str>) -> &'a str {
    let sum: usize = key.unwrap_or_default().bytes().map(usize::from).sum();
    &streams[sum % streams.len()]
}

/// Adds a message of the suite.
pub(super) async fn add(bed: &Bed, stream: &str, message: Publication) {
    let mut command = ::redis::cmd("XADD");
    command.arg(stream).arg("*");
    if let Some(id) = &message.id {
        command.arg("id").arg(id);
    }
    if let Some(key) = &message.key {
        command.arg("key").arg(key);
    }
    if let Some(payload) = &message.payload {
        command.arg("payload").arg(&payload[..]);
    }
    for (name, value) in &message.headers {
        command.arg(format!("h:{name}")).arg(value);
    }
    if message.id.is_none() && message.payload.is_none() {
        command.arg("h:none").arg("");
    }
    let _: String = command.query_async(&mut bed.client.clone()).await.expect("added");
}

#[async_trait]
impl SourceFixture for Fixture {
    async fn topic(&self, partitions: u32) -> String {
        let name = format!("s{}", self.count.fetch_add(1, Ordering::Relaxed));
        let names: Vec<String> = match partitions {
            1 => vec![name.clone()],
            _ => (0..partitions).map(|n| format!("{name}-{n}")).collect(),
        };
        for stream in &names {
            // A stream without entries: only a group can make one.
            self.bed.run(&["XGROUP", "CREATE", stream, "g", "$", "MKSTREAM"]).await;
        }
        self.topics.lock().expect("no panic").insert(name.clone(), names);
        name
    }

    async fn publish(&self, topic: &str, messages: Vec<Publication>) {
        let streams = self.streams_of(topic);
        for message in messages {
            let stream = stream_of(&streams, message.key.as_deref());
            add(&self.bed, stream, message).await;
        }
    }

    async fn join(&self, group: &str, topic: &str, member: &str, how: Joining) -> Arc<dyn Source> {
        let mut plan = LeasedConfig::new(member, self.streams_of(topic));
        plan.start_from = Some(how.start_from);
        plan.lease_ttl = Duration::from_secs(2);
        plan.in_hand_max = self.in_hand_max();
        plan.stall_limit = how.stall_limit.unwrap_or(plan.stall_limit);
        let log = Arc::new(RedisLog::new(&self.bed.config()).expect("valid"));
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

    fn is_dense(&self) -> bool {
        false
    }

    async fn remove_below(&self, topic: &str, _: i32, position: i64) -> bool {
        let id = format!("{}-{}", position >> 20, position & ((1 << 20) - 1));
        self.bed.run(&["XTRIM", topic, "MINID", &id]).await;
        true
    }
}

posthaste_testkit::source_suite!(suite, fixture, tokio::test(flavor = "multi_thread", worker_threads = 2));
