//! Redis Streams without order: the suite that every source passes, on groups. What the suite calls a topic
//! with several partitions are several streams.

use super::source::{add, stream_of};
use super::*;
use async_trait::async_trait;
use posthaste::consumer::Order;
use posthaste::source::Source;
use posthaste_brokers::GroupMember;
use posthaste_brokers::redis::RedisQueue;
use posthaste_testkit::conformance::source::{Joining, Publication, SourceFixture};
use posthaste_testkit::services::require;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

struct Fixture {
    bed: Bed,
    topics: Mutex<BTreeMap<String, Vec<String>>>,
    count: AtomicU32,
    members: Mutex<BTreeMap<(String, String), Arc<RedisQueue>>>,
}

async fn fixture() -> Option<Fixture> {
    let bed = require(Bed::open().await)?;
    Some(Fixture { bed, topics: Mutex::default(), count: AtomicU32::new(0), members: Mutex::default() })
}

impl Fixture {
    fn streams_of(&self, topic: &str) -> Vec<String> {
        let known = self.topics.lock().expect("no panic").get(topic).cloned();
        known.unwrap_or_else(|| vec![topic.to_owned()])
    }
}

#[async_trait]
impl SourceFixture for Fixture {
    async fn topic(&self, partitions: u32) -> String {
        let name = format!("q{}", self.count.fetch_add(1, Ordering::Relaxed));
        let names: Vec<String> = (0..partitions).map(|n| format!("{name}-{n}")).collect();
        for stream in &names {
            self.bed.run(&["XGROUP", "CREATE", stream, "other", "$", "MKSTREAM"]).await;
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
        let mut plan = GroupMember::new(group, self.streams_of(topic));
        plan.member = Some(member.to_owned());
        plan.order = Order::None;
        plan.start_from = how.start_from;
        plan.in_hand_max = self.in_hand_max();
        plan.stall_limit = how.stall_limit.unwrap_or(plan.stall_limit);
        let config = RedisConfig { claim_after_ms: 2_000, ..self.bed.config() };
        let source = Arc::new(RedisQueue::start(&config, &plan).expect("valid"));
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
}

posthaste_testkit::source_suite!(suite, fixture, tokio::test(flavor = "multi_thread", worker_threads = 2));
