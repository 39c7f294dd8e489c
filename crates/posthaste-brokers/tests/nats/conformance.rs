//! The suite that every sink passes.

use super::*;
use async_trait::async_trait;
use posthaste_testkit::conformance::sink::{Arrived, SinkFixture};
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
