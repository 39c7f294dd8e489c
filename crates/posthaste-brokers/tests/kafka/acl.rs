//! Rights: a topic that is denied waits by name, and costs the others nothing (F30, F36).

use super::*;
use crate::ground::load::complaint;
use posthaste::sink::Level;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Kafka, KafkaOptions, KafkaRight, KafkaSecurity, ServiceError};

/// A broker that asks for a certificate and then for rights.
struct Guarded {
    certs: Certs,
    kafka: Kafka,
}

impl Guarded {
    async fn start() -> Result<Self, ServiceError> {
        let certs = Certs::make()?;
        let mtls = KafkaSecurity::MutualTls(certs.server().clone(), certs.ca().to_owned());
        let kafka = Kafka::start(&KafkaOptions::default().listener("MTLS", mtls).authorizer()).await?;
        Ok(Self { certs, kafka })
    }

    /// A topic, and somebody's right to do this with it.
    async fn topic(&self, topic: &str, who: &str, rights: &[&str]) {
        self.kafka.create_topic(topic, 2, 1, &[]).await.expect("created");
        for right in rights {
            self.kafka.allow(&KafkaRight::topic(who, right, topic)).await.expect("allowed");
        }
    }

    async fn sink(&self, who: &str) -> Arc<dyn Sink> {
        let pair = self.certs.client(who).expect("a certificate");
        let url = self.kafka.bootstrap_at("MTLS");
        build(KafkaConfig::new(&url).with(|options| {
            options.ca_file = Some(self.certs.ca().to_owned());
            options.cert_file = Some(pair.certificate);
            options.key_file = Some(pair.key);
        }))
        .await
    }
}

#[track_caller]
fn assert_denied(verdict: &Verdict, topic: &str) {
    assert_seen(verdict, "retry", "kafka.denied", Scope::Destination);
    let words = seen(verdict).3;
    for part in [topic, "WRITE", "client-shop.pem"] {
        assert!(words.contains(part), "{part:?} is not in: {words}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_what_is_denied_waits_by_name_and_the_rest_of_the_call_is_delivered() {
    let bed = require_service!(Guarded::start().await);
    bed.topic("allowed", "shop", &["WRITE"]).await;
    bed.topic("denied", "shop", &[]).await;
    // An idempotent producer needs WRITE somewhere; who may only look gets a fatal error, and the producer
    // with it.
    bed.topic("seen", "shop", &["DESCRIBE"]).await;
    let sink = bed.sink("shop").await;
    for _ in 0..3 {
        let topics = ["allowed", "denied", "seen", "allowed", "missing", "seen", "allowed"];
        let verdicts = sink.publish(&topics.map(loose)).await;
        for (topic, verdict) in topics.iter().zip(&verdicts) {
            match *topic {
                "allowed" => assert_eq!(*verdict, Verdict::Delivered),
                topic => assert_denied(verdict, topic),
            }
        }
    }
    bed.kafka.allow(&KafkaRight::topic("shop", "WRITE", "denied")).await.expect("allowed");
    bed.kafka.allow(&KafkaRight::topic("shop", "WRITE", "seen")).await.expect("allowed");
    until_delivered(&sink, "denied", Duration::from_secs(5)).await;
    until_delivered(&sink, "seen", Duration::from_secs(5)).await;
}

/// Without WRITE on any topic there is no producer id, and not one message can be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f36_a_principal_without_any_right_is_told_so() {
    let bed = require_service!(Guarded::start().await);
    bed.topic("seen", "shop", &["DESCRIBE"]).await;
    let sink = bed.sink("shop").await;
    for _ in 0..3 {
        assert_denied(&publish_one(&sink, loose("seen")).await, "seen");
    }
    let findings = sink.examine(&["seen".to_owned()]).await;
    assert_found(&findings, "destination", Level::Fail, "may write to no topic at all");
    bed.kafka.allow(&KafkaRight::topic("shop", "WRITE", "seen")).await.expect("allowed");
    until_delivered(&sink, "seen", Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f30_a_right_that_is_lost_under_load_stops_its_topic_only() {
    let bed = require_service!(Guarded::start().await);
    bed.topic("losing", "shop", &["WRITE"]).await;
    bed.topic("keeping", "shop", &["WRITE"]).await;
    let sink = bed.sink("shop").await;
    let (losing, keeping) = (Load::start(&sink, "losing"), Load::start(&sink, "keeping"));
    losing.more(1_000).await;
    keeping.more(1_000).await;
    let right = KafkaRight::topic("shop", "WRITE", "losing");
    bed.kafka.revoke(&right).await.expect("revoked");
    assert_denied(&complaint(&sink, "losing").await, "losing");
    let started = Instant::now();
    keeping.more(5_000).await;
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    bed.kafka.allow(&right).await.expect("allowed");
    until_delivered(&sink, "losing", Duration::from_secs(5)).await;

    let account = finish(losing, &bed.kafka).await;
    assert_eq!(account.codes(), [("retry", "kafka.denied", "Destination")].into(), "{:?}", account.failures);
    let account = finish(keeping, &bed.kafka).await;
    assert!(account.failures.is_empty(), "{:?}", account.failures);
}

/// The events go on under another name, when the old one's right is gone: the new certificate is in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotated_certificate_is_the_one_that_the_broker_sees() {
    let bed = require_service!(Guarded::start().await);
    bed.topic("t", "before", &["WRITE"]).await;
    bed.kafka.allow(&KafkaRight::topic("after", "WRITE", "t")).await.expect("allowed");
    let live = bed.certs.client("before").expect("a certificate");
    let sink = bed.sink("before").await;
    until_delivered(&sink, "t", DEADLINE).await;
    let next = bed.certs.client("after").expect("a certificate");
    std::fs::copy(&next.key, &live.key).expect("rotated");
    std::fs::copy(&next.certificate, &live.certificate).expect("rotated");
    bed.kafka.revoke(&KafkaRight::topic("before", "WRITE", "t")).await.expect("revoked");
    until_delivered(&sink, "t", Duration::from_secs(10)).await;
    for _ in 0..20 {
        assert_eq!(publish_one(&sink, loose("t")).await, Verdict::Delivered);
    }
}
