//! The suite that every sink passes.

use super::*;
use crate::ground::outage::Line;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use posthaste_testkit::conformance::sink::{Arrived, SinkFixture, SlowLine};
use posthaste_testkit::services::Proxy;
use posthaste_testkit::services::require;

struct Fixture {
    bed: Bed,
}

#[async_trait]
impl SinkFixture for Fixture {
    async fn sink(&self) -> Arc<dyn Sink> {
        self.bed.sink().await
    }

    async fn destination(&self) -> String {
        self.bed.queue().await
    }

    async fn arrived(&self, destination: &str, _count: usize) -> Option<Vec<Arrived>> {
        let arrived = self.bed.take(destination).await.into_iter().map(|message| {
            let headers = message.delivery.properties.headers().clone().unwrap_or_default();
            let text = |value: &AMQPValue| match value {
                AMQPValue::LongString(text) => text.to_string(),
                other => panic!("{other:?}"),
            };
            Arrived {
                id: Some(id(&message)),
                key: header(&message, "key"),
                headers: headers
                    .inner()
                    .iter()
                    .map(|(name, value)| (name.to_string(), text(value)))
                    .collect(),
                payload: header(&message, "Posthaste-Tombstone")
                    .is_none()
                    .then(|| Bytes::copy_from_slice(&message.delivery.data)),
            }
        });
        Some(arrived.collect())
    }

    async fn behind_a_line(&self, timeout: Duration) -> Option<Box<dyn SlowLine>> {
        let destination = self.destination().await;
        let (proxy, url) = Proxy::start_before(&self.bed.url).await.expect("a proxy");
        let sink = build(RabbitmqConfig::new(&url).with(|options| {
            options.max_in_flight = 1;
            options.delivery_timeout_ms = timeout.as_millis() as u64;
        }))
        .await;
        let (channel, queue) = (self.bed.channel.clone(), destination.clone());
        let count = move || -> BoxFuture<'static, usize> {
            let (channel, queue) = (channel.clone(), queue.clone());
            let passive = QueueDeclareOptions { passive: true, ..Default::default() };
            Box::pin(async move {
                let found = channel.queue_declare(queue.into(), passive, FieldTable::default()).await;
                found.expect("the queue is there").message_count() as usize
            })
        };
        Some(Box::new(Line { proxy, sink, destination, count }))
    }

    async fn hopeless_destination(&self) -> Option<String> {
        Some("x".repeat(256))
    }
}

async fn fixture() -> Option<Fixture> {
    Some(Fixture { bed: require(Bed::open().await)? })
}

posthaste_testkit::sink_suite!(suite, fixture);
