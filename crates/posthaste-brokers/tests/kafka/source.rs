//! Kafka as a source: the suite that every source passes, on the shared broker, by both protocols of groups.

use super::*;
use async_trait::async_trait;
use posthaste::source::Source;
use posthaste_brokers::GroupMember;
use posthaste_brokers::kafka::{GroupProtocol, KafkaSource, KafkaSourceConfig};
use posthaste_testkit::conformance::source::{Joining, Publication, SourceFixture};
use posthaste_testkit::services::{ForeignRecord, require};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The groups of one case: the broker is shared, so each case has names of its own.
struct Fixture {
    kafka: &'static Kafka,
    case: u32,
    protocol: GroupProtocol,
    members: Mutex<BTreeMap<(String, String), Arc<KafkaSource>>>,
}

async fn fixture(protocol: GroupProtocol) -> Option<Fixture> {
    static CASES: AtomicU32 = AtomicU32::new(0);
    let kafka = require(shared().await)?;
    let case = CASES.fetch_add(1, Ordering::Relaxed);
    Some(Fixture { kafka, case, protocol, members: Mutex::default() })
}

async fn classic() -> Option<Fixture> {
    fixture(GroupProtocol::Classic).await
}

async fn consumer() -> Option<Fixture> {
    fixture(GroupProtocol::Consumer).await
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
        let source = KafkaSourceConfig { protocol: self.protocol, ..config(self.kafka).into() };
        let source = Arc::new(KafkaSource::start(&source, &plan).expect("valid"));
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

posthaste_testkit::source_suite!(suite, classic, tokio::test(flavor = "multi_thread", worker_threads = 2));

/// What membership decides, by the newer protocol. The rest does not know which one it is.
mod consumer_protocol {
    use super::*;
    posthaste_testkit::__conformance_tests!(
        source,
        [consumer, tokio::test(flavor = "multi_thread", worker_threads = 2)],
        each_message_is_delivered_once
        g3_a_keys_messages_come_in_order
        a_group_begins_where_it_declared
        g2_what_was_not_acknowledged_comes_again_after_a_crash
        seeking_replays
        g8_a_drain_waits_for_what_is_in_hand_and_gives_the_rest_back
        g4_a_zombie_settles_nothing
        g4_epochs_grow
        members_share_the_partitions
        a_member_that_leaves_is_replaced_at_once
        f65_members_come_and_go_and_nothing_is_lost
    );
}
