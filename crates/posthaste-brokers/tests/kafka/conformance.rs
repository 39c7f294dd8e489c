//! The suite that every sink passes.

use super::*;
use async_trait::async_trait;
use posthaste_testkit::conformance::sink::{Arrived, SinkFixture, SlowLine};
use posthaste_testkit::services::require;

struct Fixture {
    kafka: &'static Kafka,
}

fn arrived(record: KafkaRecord) -> Arrived {
    let headers =
        record.headers.iter().map(|(name, _)| (name.clone(), record.header(name).unwrap_or_default()));
    Arrived {
        id: record.header("Message-ID"),
        key: record.key.clone().map(|key| String::from_utf8(key).expect("text")),
        headers: headers.collect(),
        payload: record.value.clone().map(Into::into),
    }
}

#[async_trait]
impl SinkFixture for Fixture {
    async fn sink(&self) -> Arc<dyn Sink> {
        build(config(self.kafka)).await
    }

    async fn destination(&self) -> String {
        topic(self.kafka).await
    }

    async fn arrived(&self, destination: &str, _count: usize) -> Option<Vec<Arrived>> {
        let records = self.kafka.dump(destination).await.expect("the topic is read");
        Some(records.into_iter().map(arrived).collect())
    }

    async fn behind_a_line(&self, timeout: Duration) -> Option<Box<dyn SlowLine>> {
        let line = tokio::task::spawn_blocking(move || RUNTIME.block_on(Proxied::start(timeout)));
        Some(Box::new(line.await.expect("no panic")?))
    }

    async fn hopeless_destination(&self) -> Option<String> {
        Some("not a topic".to_owned())
    }
}

/// A broker of its own whose listener is a proxy: the brokers' addresses come from the brokers.
struct Proxied {
    kafka: Kafka,
    sink: Arc<dyn Sink>,
    destination: String,
}

impl Proxied {
    async fn start(timeout: Duration) -> Option<Self> {
        let (kafka, proxied) = require(proxied().await)?;
        let destination = topic(&kafka).await;
        let sink = build(proxied.with(|options| {
            options.max_in_flight = 1;
            options.delivery_timeout_ms = timeout.as_millis() as u64;
        }))
        .await;
        Some(Self { kafka, sink, destination })
    }
}

#[async_trait]
impl SlowLine for Proxied {
    fn sink(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.sink)
    }

    fn destination(&self) -> String {
        self.destination.clone()
    }

    async fn delay(&self, delay: Duration) {
        self.kafka.node(1).proxy("PROXIED").delay(delay).await;
    }

    async fn count(&self) -> usize {
        self.kafka.dump(&self.destination).await.expect("the topic is read").len()
    }
}

async fn fixture() -> Option<Fixture> {
    Some(Fixture { kafka: require(shared().await)? })
}

posthaste_testkit::sink_suite!(suite, fixture);
