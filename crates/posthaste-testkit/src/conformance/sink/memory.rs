//! The sinks without a broker as fixtures of the sink suite.

use super::{Arrived, SinkFixture};
use crate::faults::{Broker, Delivery, Dice, RecordingSink, Reply};
use async_trait::async_trait;
use posthaste::sink::{Failure, NullSink, Ordering, Sink, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering as Atomic};
use std::time::Duration;

const HOPELESS: &str = "hopeless";

/// A recording sink of one ordering, with latency, so that order is not kept by luck.
pub struct RecordingFixture {
    broker: Broker,
    ordering: Ordering,
    destinations: AtomicU32,
}

impl RecordingFixture {
    /// A sink of this ordering.
    #[must_use]
    pub fn new(ordering: Ordering) -> Self {
        let broker = Broker::new();
        broker.judge(|offer| match offer.message.destination.as_str() {
            HOPELESS => Reply::Refuse(Verdict::Rejected(Failure::of_event("test.hopeless", "never"))),
            _ => Reply::Deliver,
        });
        Self { broker, ordering, destinations: AtomicU32::new(0) }
    }
}

fn arrived(delivery: Delivery) -> Arrived {
    let Delivery { id, key, headers, payload, .. } = delivery;
    Arrived { id: Some(id.hyphenated().to_string()), key, headers, payload }
}

#[async_trait]
impl SinkFixture for RecordingFixture {
    async fn sink(&self) -> Arc<dyn Sink> {
        let sink = RecordingSink::new(&self.broker, "test", self.ordering);
        Arc::new(sink.with_latency(Dice::new(1), Duration::from_millis(3)))
    }

    async fn destination(&self) -> String {
        format!("destination-{}", self.destinations.fetch_add(1, Atomic::Relaxed))
    }

    async fn arrived(&self, destination: &str, _: usize) -> Option<Vec<Arrived>> {
        let deliveries = self.broker.deliveries().into_iter();
        Some(deliveries.filter(|delivery| delivery.destination == destination).map(arrived).collect())
    }

    async fn hopeless_destination(&self) -> Option<String> {
        Some(HOPELESS.to_owned())
    }
}

/// The null sink: verdicts only.
#[derive(Debug, Default)]
pub struct NullFixture;

#[async_trait]
impl SinkFixture for NullFixture {
    async fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(NullSink)
    }

    async fn destination(&self) -> String {
        "anywhere".to_owned()
    }

    async fn arrived(&self, _: &str, _: usize) -> Option<Vec<Arrived>> {
        None
    }
}
