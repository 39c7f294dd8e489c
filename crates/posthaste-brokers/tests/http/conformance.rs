//! The suite that every sink passes.

use super::*;
use async_trait::async_trait;
use posthaste_testkit::conformance::sink::{Arrived, SinkFixture};
use posthaste_testkit::services::{Answer, Recorded};
use std::sync::atomic::{AtomicU32, Ordering};

struct Fixture {
    receiver: Receiver,
    destinations: AtomicU32,
}

#[async_trait]
impl SinkFixture for Fixture {
    async fn sink(&self) -> Arc<dyn Sink> {
        build(near(&self.receiver)).await
    }

    async fn destination(&self) -> String {
        format!("place-{}", self.destinations.fetch_add(1, Ordering::Relaxed))
    }

    async fn arrived(&self, destination: &str, _count: usize) -> Option<Vec<Arrived>> {
        let arrived = |request: Recorded| {
            let text = |name| request.header(name).map(str::to_owned);
            Arrived {
                id: text("webhook-id"),
                key: text("key"),
                payload: text("posthaste-tombstone").is_none().then(|| request.body.clone()),
                headers: request.headers,
            }
        };
        Some(self.receiver.requests_for(&format!("/{destination}")).into_iter().map(arrived).collect())
    }

    async fn hopeless_destination(&self) -> Option<String> {
        self.receiver.always("/hopeless", Answer::status(422));
        Some("hopeless".to_owned())
    }
}

async fn fixture() -> Option<Fixture> {
    Some(Fixture { receiver: receiver().await, destinations: AtomicU32::new(0) })
}

posthaste_testkit::sink_suite!(suite, fixture);
