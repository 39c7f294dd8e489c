//! The suite that every sink passes.

use super::*;
use async_trait::async_trait;
use posthaste_testkit::conformance::sink::{Arrived, SinkFixture};
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

    async fn hopeless_destination(&self) -> Option<String> {
        Some("not a topic".to_owned())
    }
}

async fn fixture() -> Option<Fixture> {
    Some(Fixture { kafka: require(shared().await)? })
}

posthaste_testkit::sink_suite!(suite, fixture);
