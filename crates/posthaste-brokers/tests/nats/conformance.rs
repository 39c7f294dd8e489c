//! The suite that every sink passes.

use super::*;
use crate::ground::outage::Line;
use async_trait::async_trait;
use futures_util::future::BoxFuture;
use posthaste_testkit::conformance::sink::{Arrived, SinkFixture, SlowLine};
use posthaste_testkit::services::Proxy;
use posthaste_testkit::services::require;
use std::sync::atomic::{AtomicU32, Ordering};

struct Fixture {
    bed: Bed,
    destinations: AtomicU32,
}

#[async_trait]
impl SinkFixture for Fixture {
    async fn sink(&self) -> Arc<dyn Sink> {
        let sink = self.bed.sink().await;
        // Capabilities are complete once it is connected.
        sink.examine(&[]).await;
        sink
    }

    async fn destination(&self) -> String {
        let number = self.destinations.fetch_add(1, Ordering::Relaxed);
        let subject = format!("place.{number}");
        self.bed.stream(&format!("S{number}"), &[&subject]).await;
        subject
    }

    async fn arrived(&self, destination: &str, _count: usize) -> Option<Vec<Arrived>> {
        let stream = destination.replace("place.", "S");
        let arrived = self.bed.stored(&stream).await.into_iter().map(|message| {
            let tombstone = header(&message, "Posthaste-Tombstone").is_some();
            let headers = message.headers.iter().flat_map(async_nats::HeaderMap::iter);
            Arrived {
                id: header(&message, "Message-ID"),
                key: header(&message, "key"),
                headers: headers.map(|(name, values)| (name.to_string(), values[0].to_string())).collect(),
                payload: (!tombstone).then(|| message.payload.clone()),
            }
        });
        Some(arrived.collect())
    }

    async fn behind_a_line(&self, timeout: Duration) -> Option<Box<dyn SlowLine>> {
        let destination = self.destination().await;
        let (proxy, url) = Proxy::start_before(&self.bed.server.url()).await.expect("a proxy");
        let sink = build(NatsConfig::new(&url).with(|options| {
            options.max_in_flight = 1;
            options.delivery_timeout_ms = timeout.as_millis() as u64;
        }))
        .await;
        let (jetstream, stream) = (self.bed.jetstream.clone(), destination.replace("place.", "S"));
        let count = move || -> BoxFuture<'static, usize> {
            let (jetstream, stream) = (jetstream.clone(), stream.clone());
            Box::pin(async move {
                let stream = jetstream.get_stream(&stream).await.expect("the stream is there");
                stream.cached_info().state.messages as usize
            })
        };
        Some(Box::new(Line { proxy, sink, destination, count }))
    }

    async fn hopeless_destination(&self) -> Option<String> {
        Some("not a subject".to_owned())
    }
}

async fn fixture() -> Option<Fixture> {
    // The suite's largest payload is 1 MiB, and headers come on top.
    let bed = require(Bed::start(&NatsOptions::default().setting("max_payload: 2MB")).await)?;
    Some(Fixture { bed, destinations: AtomicU32::new(0) })
}

posthaste_testkit::sink_suite!(suite, fixture);
