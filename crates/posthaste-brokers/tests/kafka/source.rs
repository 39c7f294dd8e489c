//! Kafka as a source: the suite that every source passes, on the shared broker.

use super::*;
use async_trait::async_trait;
use posthaste::source::Source;
use posthaste_brokers::GroupMember;
use posthaste_brokers::kafka::KafkaSource;
use posthaste_testkit::conformance::source::{Joining, Publication, SourceFixture};
use posthaste_testkit::services::{ForeignRecord, require};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The groups of one case: the broker is shared, so each case has names of its own.
struct Fixture {
    kafka: &'static Kafka,
    case: u32,
    members: Mutex<BTreeMap<(String, String), Arc<KafkaSource>>>,
}

async fn fixture() -> Option<Fixture> {
    static CASES: AtomicU32 = AtomicU32::new(0);
    let kafka = require(shared().await)?;
    Some(Fixture { kafka, case: CASES.fetch_add(1, Ordering::Relaxed), members: Mutex::default() })
}

fn record(message: Publication) -> ForeignRecord {
    let Publication { id, key, headers, payload } = message;
    let id = id.map(|id| ("Message-ID".to_owned(), id));
    let headers = headers.into_iter().chain(id).map(|(name, value)| (name, Some(value.into_bytes())));
    let (key, value) = (key.map(String::into_bytes), payload.map(|payload| payload.to_vec()));
    ForeignRecord { key, value, headers: headers.collect() }
}

#[async_trait]
impl SourceFixture for Fixture {
    async fn topic(&self, partitions: u32) -> String {
        topic_with(self.kafka, partitions, &[]).await
    }

    async fn publish(&self, topic: &str, messages: Vec<Publication>) {
        if topic.ends_with("-later") {
            self.kafka.create_topic(topic, 1, 1, &[]).await.expect("created");
        }
        let records: Vec<_> = messages.into_iter().map(record).collect();
        self.kafka.send(topic, &records, None).await.expect("sent");
    }

    async fn join(&self, group: &str, topic: &str, member: &str, how: Joining) -> Arc<dyn Source> {
        let mut plan = GroupMember::new(format!("{group}-{}", self.case), [topic]);
        plan.member = Some(member.to_owned());
        plan.start_from = how.start_from;
        plan.in_hand_max = self.in_hand_max();
        plan.stall_limit = how.stall_limit.unwrap_or(plan.stall_limit);
        let source = Arc::new(KafkaSource::start(&config(self.kafka), &plan).expect("valid"));
        let key = (group.to_owned(), member.to_owned());
        self.members.lock().expect("no panic").insert(key, Arc::clone(&source));
        source
    }

    async fn kill(&self, group: &str, member: &str) {
        let key = (group.to_owned(), member.to_owned());
        self.members.lock().expect("no panic")[&key].freeze();
    }

    fn in_hand_max(&self) -> usize {
        300
    }

    async fn remove_below(&self, topic: &str, partition: i32, position: i64) -> bool {
        self.kafka.remove_below(topic, partition, position).await.expect("removed");
        true
    }
}

posthaste_testkit::source_suite!(suite, fixture, tokio::test(flavor = "multi_thread", worker_threads = 2));
