//! The suite that every sink passes.

use super::*;
use crate::ground::outage::Line;
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use posthaste_testkit::conformance::sink::{Arrived, SinkFixture, SlowLine};
use posthaste_testkit::services::Proxy;
use posthaste_testkit::services::{Answer, Recorded};
use std::sync::atomic::{AtomicU32, Ordering};

struct Fixture {
    receiver: Arc<Receiver>,
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

    async fn behind_a_line(&self, timeout: Duration) -> Option<Box<dyn SlowLine>> {
        let destination = self.destination().await;
        let (proxy, url) = Proxy::start_before(&self.receiver.url()).await.expect("a proxy");
        let config = HttpConfig { allow_private: true, ..HttpConfig::new(&url) };
        let sink = build(config.with(|options| {
            options.max_in_flight = 1;
            options.delivery_timeout_ms = timeout.as_millis() as u64;
        }))
        .await;
        let (receiver, path) = (Arc::clone(&self.receiver), format!("/{destination}"));
        let count = move || -> BoxFuture<'static, usize> {
            Box::pin(std::future::ready(receiver.requests_for(&path).len()))
        };
        Some(Box::new(Line { proxy, sink, destination, count }))
    }

    async fn hopeless_destination(&self) -> Option<String> {
        self.receiver.always("/hopeless", Answer::status(422));
        Some("hopeless".to_owned())
    }
}

async fn fixture() -> Option<Fixture> {
    Some(Fixture { receiver: Arc::new(receiver().await), destinations: AtomicU32::new(0) })
}

posthaste_testkit::sink_suite!(suite, fixture);
