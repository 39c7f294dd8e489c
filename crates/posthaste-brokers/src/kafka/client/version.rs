//! Whether the brokers can do what the sink needs of them.
//!
//! Kafka does not tell its version. It tells each client which requests it knows, but the client keeps that
//! to itself. A producer asks for its id before the first event, however, and this shows what we need:
//! brokers before 0.11 know no idempotent producer, and a principal that may write to no topic gets no id. So
//! a producer is started that sends nothing, and its statistics are read until it has an id or has given up.
//!
//! Asking over a connection of our own was refused, although the request has a few bytes. It would need a
//! second TLS and a second login beside the client's, and the other requests that a broker knows change
//! nothing here.

use crate::kafka::KafkaConfig;
use rdkafka::ClientContext;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the producer reports its statistics.
const ACCOUNT_MS: u64 = 50;
const LOOK: Duration = Duration::from_millis(20);

/// What became of the question.
#[derive(Debug, PartialEq)]
pub(in crate::kafka) enum VersionCheck {
    /// The producer has its id.
    Fits,
    /// The producer will never have an id. The text is the client's.
    Refused(Code, String),
    /// Nothing came in time.
    Silent,
}

/// Asks for a producer's id. No event is sent.
pub(in crate::kafka) async fn ask(config: &KafkaConfig, within: Duration) -> VersionCheck {
    let Ok(mut client) = config.producer("questions", true) else { return VersionCheck::Silent };
    client.set("statistics.interval.ms", ACCOUNT_MS.to_string());
    // Dropping it waits for its threads, so this must not be a task.
    let asked = tokio::task::spawn_blocking(move || {
        let account = Account::default();
        let producer = BaseProducer::from_config_and_context(&client, account);
        producer.map_or(VersionCheck::Silent, |producer| wait(&producer, within))
    });
    asked.await.unwrap_or(VersionCheck::Silent)
}

fn wait(producer: &BaseProducer<Account>, within: Duration) -> VersionCheck {
    let until = Instant::now() + within;
    loop {
        producer.poll(LOOK);
        if let Some((code, words)) = producer.client().fatal_error() {
            return VersionCheck::Refused(code, words);
        }
        if producer.context().has_id.load(Ordering::Relaxed) {
            return VersionCheck::Fits;
        }
        if Instant::now() >= until {
            return VersionCheck::Silent;
        }
    }
}

#[derive(Default)]
struct Account {
    has_id: AtomicBool,
}

impl ClientContext for Account {
    fn stats(&self, statistics: Statistics) {
        let has_id = statistics.eos.is_some_and(|eos| eos.producer_id >= 0);
        self.has_id.fetch_or(has_id, Ordering::Relaxed);
    }

    fn error(&self, _: rdkafka::error::KafkaError, _: &str) {
        // The sink's own producers hear the same complaints.
    }

    fn log(&self, _: rdkafka::config::RDKafkaLogLevel, _: &str, _: &str) {}
}

impl ProducerContext for Account {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
