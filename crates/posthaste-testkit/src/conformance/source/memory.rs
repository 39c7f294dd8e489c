//! The model as a fixture of the source suite.

use super::{Joining, Publication, SourceFixture};
use crate::broker::{BrokerKind, MemoryBroker};
use async_trait::async_trait;
use bytes::Bytes;
use posthaste::source::{Received, Source};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A fresh broker in memory.
pub struct MemorySourceFixture {
    broker: MemoryBroker,
    topics: AtomicU32,
}

impl MemorySourceFixture {
    /// A fixture of this kind.
    #[must_use]
    pub fn new(kind: BrokerKind) -> Self {
        Self { broker: MemoryBroker::new(kind, 300), topics: AtomicU32::new(0) }
    }
}

#[async_trait]
impl SourceFixture for MemorySourceFixture {
    async fn topic(&self, partitions: u32) -> String {
        let name = format!("topic-{}", self.topics.fetch_add(1, Ordering::Relaxed));
        self.broker.declare(&name, partitions);
        name
    }

    async fn publish(&self, topic: &str, messages: Vec<Publication>) {
        for message in messages {
            let Publication { id, key, headers, payload } = message;
            let headers = headers.into_iter().map(|(name, value)| (name, Bytes::from(value.into_bytes())));
            let key = key.map(|key| Bytes::from(key.into_bytes()));
            self.broker.publish(topic, Received { id, key, headers: headers.collect(), payload });
        }
    }

    async fn join(&self, group: &str, topic: &str, member: &str, how: Joining) -> Arc<dyn Source> {
        let stall_limit = how.stall_limit.unwrap_or(Duration::from_secs(86_400));
        Arc::new(self.broker.join(group, topic, member, how.start_from, stall_limit))
    }

    async fn kill(&self, group: &str, member: &str) {
        self.broker.kill(group, member);
    }

    fn in_hand_max(&self) -> usize {
        300
    }

    async fn remove_below(&self, topic: &str, partition: i32, position: i64) -> bool {
        self.broker.remove_below(topic, partition, position);
        true
    }
}
