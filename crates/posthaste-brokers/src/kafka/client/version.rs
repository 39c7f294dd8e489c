//! Whether the brokers can do what the sink needs of them.
//!
//! Kafka does not tell its version. What it tells each client is which requests it knows, and the client keeps that to
//! itself. But a producer asks for its id before the first event, and this shows both: brokers before 0.11 know no
//! idempotent producer, and a principal that may write to no topic gets no id. So a producer is started that sends
//! nothing, and its own account of itself is read until it has an id or has given up.
//!
//! Asking on a connection of our own (the request is a few bytes) was refused: it would need a second TLS and a second
//! login beside the client's, and what other requests a broker knows changes nothing here.

use crate::kafka::KafkaConfig;
use rdkafka::ClientContext;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the producer gives account.
const ACCOUNT_MS: u64 = 50;
const LOOK: Duration = Duration::from_millis(20);

/// What became of the question.
#[derive(Debug, PartialEq)]
pub(in crate::kafka) enum VersionCheck {
    /// It has its id.
    Fits,
    /// It will never have one, with the client's words.
    Refused(Code, String),
    /// Nothing in time.
    Silent,
}

/// Asks for a producer's id, and sends nothing.
pub(in crate::kafka) async fn ask(config: &KafkaConfig, within: Duration) -> VersionCheck {
    let Ok(mut client) = config.producer("questions", true) else { return VersionCheck::Silent };
    client.set("statistics.interval.ms", ACCOUNT_MS.to_string());
    // Its end waits for its threads: that must not be a task.
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
        // The sink's own producers hear the same.
    }

    fn log(&self, _: rdkafka::config::RDKafkaLogLevel, _: &str, _: &str) {}
}

impl ProducerContext for Account {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}
