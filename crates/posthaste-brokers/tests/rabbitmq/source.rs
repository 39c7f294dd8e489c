//! RabbitMQ as a source: the suite that every source passes, on the shared broker.
//!
//! A topic of the suite is one queue for each of its partitions and each group. What was published before a
//! group was there is published again for it, as an exchange with a log behind it would.

use super::*;
use async_trait::async_trait;
use lapin::BasicProperties;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use posthaste::consumer::Order;
use posthaste::source::{Source, StartFrom};
use posthaste_brokers::GroupMember;
use posthaste_brokers::rabbitmq::RabbitmqSource;
use posthaste_testkit::conformance::source::{Joining, Publication, SourceFixture};
use posthaste_testkit::services::require;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Arguments of a quorum queue, with these beside.
pub(super) fn quorum(more: &[(&str, AMQPValue)]) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    for (name, value) in more {
        arguments.insert((*name).into(), value.clone());
    }
    arguments
}

/// Arguments of a quorum queue with a single active consumer.
pub(super) fn single() -> FieldTable {
    quorum(&[("x-single-active-consumer", AMQPValue::Boolean(true))])
}

/// Publishes to a queue, in order, and waits for the confirmations.
pub(super) async fn publish_all(bed: &Bed, queue: &str, messages: &[Publication]) {
    bed.channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let mut confirms = Vec::new();
    for message in messages {
        let mut headers = FieldTable::default();
        for (name, value) in &message.headers {
            headers.insert(name.as_str().into(), AMQPValue::LongString(value.as_str().into()));
        }
        if let Some(key) = &message.key {
            headers.insert("key".into(), AMQPValue::LongString(key.as_str().into()));
        }
        if message.payload.is_none() {
            headers.insert("Posthaste-Tombstone".into(), AMQPValue::LongString("true".into()));
        }
        let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
        let properties = match &message.id {
            Some(id) => properties.with_message_id(id.as_str().into()),
            None => properties,
        };
        let (options, body) = (BasicPublishOptions::default(), message.payload.clone().unwrap_or_default());
        let published = bed.channel.basic_publish("".into(), queue.into(), options, &body, properties).await;
        confirms.push(published.expect("sent"));
    }
    for confirm in confirms {
        assert!(confirm.await.expect("an answer").is_ack(), "{queue}");
    }
}

#[derive(Default)]
struct Topic {
    partitions: u32,
    published: Vec<(u32, Publication)>,
    groups: Vec<String>,
}

struct Fixture {
    bed: Bed,
    order: Order,
    topics: tokio::sync::Mutex<BTreeMap<String, Topic>>,
    members: Mutex<BTreeMap<(String, String), Arc<RabbitmqSource>>>,
}

async fn fixture(order: Order) -> Option<Fixture> {
    let bed = require(Bed::open().await)?;
    Some(Fixture { bed, order, topics: tokio::sync::Mutex::default(), members: Mutex::default() })
}

fn queue_of(topic: &str, group: &str, partition: u32) -> String {
    format!("{topic}.{group}.{partition}")
}

impl Fixture {
    async fn declare(&self, topic: &str, group: &str, partitions: u32) {
        for partition in 0..partitions {
            let arguments = if self.order == Order::None { quorum(&[]) } else { single() };
            self.bed.queue_with(&queue_of(topic, group, partition), arguments).await;
        }
    }
}

#[async_trait]
impl SourceFixture for Fixture {
    async fn topic(&self, partitions: u32) -> String {
        let name = unique("source");
        let made = Topic { partitions, ..Topic::default() };
        self.topics.lock().await.insert(name.clone(), made);
        name
    }

    async fn publish(&self, topic: &str, messages: Vec<Publication>) {
        let mut topics = self.topics.lock().await;
        let found = topics.get_mut(topic).expect("a topic");
        if found.partitions == 0 {
            found.partitions = 1;
            for group in found.groups.clone() {
                self.declare(topic, &group, 1).await;
            }
        }
        let place = |message: &Publication| {
            let key = message.key.clone().unwrap_or_default();
            key.bytes().fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()))
                % found.partitions
        };
        let placed: Vec<_> = messages.into_iter().map(|message| (place(&message), message)).collect();
        for group in &found.groups {
            for partition in 0..found.partitions {
                let of_it =
                    placed.iter().filter(|(at, _)| *at == partition).map(|(_, message)| message.clone());
                publish_all(&self.bed, &queue_of(topic, group, partition), &of_it.collect::<Vec<_>>()).await;
            }
        }
        found.published.extend(placed);
    }

    async fn join(&self, group: &str, topic: &str, member: &str, how: Joining) -> Arc<dyn Source> {
        let mut topics = self.topics.lock().await;
        let found = topics.entry(topic.to_owned()).or_default();
        if !found.groups.iter().any(|known| known == group) {
            found.groups.push(group.to_owned());
            self.declare(topic, group, found.partitions).await;
            for partition in 0..found.partitions {
                let before = found.published.iter().filter(|(at, _)| *at == partition);
                let before: Vec<_> = before.map(|(_, message)| message.clone()).collect();
                if how.start_from == StartFrom::Earliest {
                    publish_all(&self.bed, &queue_of(topic, group, partition), &before).await;
                }
            }
        }
        let queues = (0..found.partitions.max(1)).map(|partition| queue_of(topic, group, partition));
        let mut plan = GroupMember::new(group, queues);
        plan.member = Some(member.to_owned());
        plan.order = self.order;
        plan.in_hand_max = self.in_hand_max();
        plan.stall_limit = how.stall_limit.unwrap_or(plan.stall_limit);
        let source = Arc::new(RabbitmqSource::start(&self.bed.config(), &plan).expect("valid"));
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

async fn in_order() -> Option<Fixture> {
    fixture(Order::Key).await
}

async fn without_order() -> Option<Fixture> {
    fixture(Order::None).await
}

posthaste_testkit::source_suite!(
    single_active,
    in_order,
    tokio::test(flavor = "multi_thread", worker_threads = 2)
);
posthaste_testkit::source_suite!(
    competing,
    without_order,
    tokio::test(flavor = "multi_thread", worker_threads = 2)
);
