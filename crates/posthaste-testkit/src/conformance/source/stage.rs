//! What the cases stand on: publishing numbers, reading them back.

use super::{Joining, Publication, SourceFixture};
use crate::conformance::DEADLINE;
use bytes::Bytes;
use posthaste::source::{Batch, Change, Delivery, Limit, Source, SourceError, Standing, Ticket};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Long enough for anything that is going to come to have come.
pub(super) const SHORT: Duration = Duration::from_millis(250);

pub(super) const MANY: Limit = Limit { events: 1_000, bytes: 1 << 24 };

/// A message with a number in it.
pub(super) fn numbered(n: i64, key: Option<&str>) -> Publication {
    Publication {
        id: Some(format!("id-{n}")),
        key: key.map(str::to_owned),
        headers: Vec::new(),
        payload: Some(Bytes::from(n.to_string().into_bytes())),
    }
}

/// Publishes these numbers, all with one key: they are in one partition.
pub(super) async fn publish(
    fixture: &impl SourceFixture,
    topic: &str,
    numbers: impl IntoIterator<Item = i64>,
) {
    let messages = numbers.into_iter().map(|n| numbered(n, Some("k"))).collect();
    fixture.publish(topic, messages).await;
}

/// Publishes these numbers with a key for each: they are spread over the partitions.
pub(super) async fn spread(
    fixture: &impl SourceFixture,
    topic: &str,
    numbers: impl IntoIterator<Item = i64>,
) {
    let messages = numbers.into_iter().map(|n| numbered(n, Some(&format!("key-{n}")))).collect();
    fixture.publish(topic, messages).await;
}

pub(super) fn number(delivery: &Delivery) -> i64 {
    let payload = delivery.message.payload.clone().unwrap_or_default();
    std::str::from_utf8(&payload).expect("text").parse().expect("a number")
}

pub(super) fn numbers(deliveries: &[Delivery]) -> Vec<i64> {
    deliveries.iter().map(number).collect()
}

pub(super) fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers
}

pub(super) fn tickets(deliveries: &[Delivery]) -> Vec<Ticket> {
    deliveries.iter().map(|delivery| delivery.ticket.clone()).collect()
}

/// A member with what it heard.
pub(super) struct Member {
    pub(super) source: Arc<dyn Source>,
    pub(super) changes: Vec<Change>,
}

impl Member {
    pub(super) async fn join(fixture: &impl SourceFixture, topic: &str, name: &str) -> Self {
        Self::join_as(fixture, "group", topic, name, Joining::default()).await
    }

    pub(super) async fn join_as(
        fixture: &impl SourceFixture,
        group: &str,
        topic: &str,
        name: &str,
        how: Joining,
    ) -> Self {
        Self { source: fixture.join(group, topic, name, how).await, changes: Vec::new() }
    }

    /// One call.
    pub(super) async fn next(&mut self, limit: Limit, wait: Duration) -> Vec<Delivery> {
        let Batch { changes, deliveries } = self.source.next(limit, wait).await.expect("the broker answers");
        self.changes.extend(changes);
        deliveries
    }

    /// Deliveries until there are so many.
    pub(super) async fn take(&mut self, count: usize) -> Vec<Delivery> {
        let end = Instant::now() + DEADLINE;
        let mut taken = Vec::new();
        while taken.len() < count {
            assert!(Instant::now() < end, "{} of {count} deliveries: {:?}", taken.len(), numbers(&taken));
            let limit = Limit { events: count - taken.len(), ..MANY };
            taken.extend(self.next(limit, SHORT).await);
        }
        taken
    }

    /// Deliveries until none has come for a while.
    pub(super) async fn rest(&mut self) -> Vec<Delivery> {
        let mut taken = Vec::new();
        let mut end = Instant::now() + 2 * SHORT;
        while Instant::now() < end {
            let more = self.next(MANY, SHORT).await;
            if !more.is_empty() {
                end = Instant::now() + 2 * SHORT;
            }
            taken.extend(more);
        }
        taken
    }

    /// Takes so many and acknowledges them.
    pub(super) async fn consume(&mut self, count: usize) -> Vec<i64> {
        let taken = self.take(count).await;
        self.ack(&taken).await;
        numbers(&taken)
    }

    pub(super) async fn ack(&self, deliveries: &[Delivery]) {
        let standings = self.source.ack(&tickets(deliveries)).await.expect("acknowledged");
        assert_eq!(standings, vec![Standing::Settled; deliveries.len()]);
    }

    pub(super) async fn nack(&self, delivery: &Delivery, delay: Duration) {
        assert_eq!(self.source.nack(&delivery.ticket, delay).await, Ok(Standing::Settled));
    }

    /// Calls until so many partitions are assigned; what is delivered on the way must be nothing.
    pub(super) async fn assigned(&mut self, count: usize) {
        let end = Instant::now() + DEADLINE;
        while self.partitions().await != count {
            assert!(Instant::now() < end, "{} of {count} partitions", self.partitions().await);
            let early = self.next(Limit { events: 0, ..MANY }, SHORT / 5).await;
            assert!(early.is_empty(), "a call without room delivers nothing");
        }
    }

    pub(super) async fn partitions(&self) -> usize {
        self.source.view().await.expect("the broker answers").len()
    }

    pub(super) async fn drain(&self) {
        let drained = self.source.drain(DEADLINE).await.expect("drained");
        assert_eq!(drained.abandoned, 0);
        let after = self.source.next(MANY, SHORT).await;
        assert!(matches!(after, Err(SourceError::Closed)), "{after:?}");
    }
}

/// So many events.
pub(super) fn limit(events: usize) -> Limit {
    Limit { events, ..MANY }
}
