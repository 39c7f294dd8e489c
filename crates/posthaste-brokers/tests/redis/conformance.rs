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
        format!("place:{}", self.destinations.fetch_add(1, Ordering::Relaxed))
    }

    async fn arrived(&self, destination: &str, _count: usize) -> Option<Vec<Arrived>> {
        Some(self.bed.stored(destination).await.iter().map(arrived).collect())
    }

    async fn behind_a_line(&self, timeout: Duration) -> Option<Box<dyn SlowLine>> {
        let destination = self.destination().await;
        let (proxy, url) = Proxy::start_before(&self.bed.server.url()).await.expect("a proxy");
        let sink = build(RedisConfig::new(&url).with(|options| {
            options.max_in_flight = 1;
            options.delivery_timeout_ms = timeout.as_millis() as u64;
        }))
        .await;
        let (client, stream) = (self.bed.client.clone(), destination.clone());
        let count = move || -> BoxFuture<'static, usize> {
            let (mut client, stream) = (client.clone(), stream.clone());
            Box::pin(async move {
                ::redis::cmd("XLEN").arg(stream).query_async(&mut client).await.expect("a stream")
            })
        };
        Some(Box::new(Line { proxy, sink, destination, count }))
    }

    async fn hopeless_destination(&self) -> Option<String> {
        Some(String::new())
    }
}

fn arrived(entry: &Entry) -> Arrived {
    let headers = entry.0.keys().filter_map(|name| Some((name.strip_prefix("h:")?, entry.text(name)?)));
    let mut headers: Vec<_> = headers.map(|(name, value)| (name.to_owned(), value)).collect();
    // Two headers of other brokers are fields here.
    headers.extend(entry.text("id").map(|id| ("Message-ID".to_owned(), id)));
    headers.extend(entry.text("key").map(|key| ("key".to_owned(), key)));
    Arrived {
        id: entry.text("id"),
        key: entry.text("key"),
        headers,
        payload: entry.0.get("payload").map(|bytes| bytes.clone().into()),
    }
}

async fn fixture() -> Option<Fixture> {
    // Small enough for the suite to try what is larger.
    let bed = require(Bed::start(&RedisOptions::default().setting("proto-max-bulk-len 2mb")).await)?;
    Some(Fixture { bed, destinations: AtomicU32::new(0) })
}

posthaste_testkit::sink_suite!(suite, fixture);
