//! What `posthaste doctor` finds.

use super::*;
use posthaste::sink::Level;
use posthaste_testkit::require_service;
use rdkafka::mocking::MockCluster;
use rdkafka::types::RDKafkaApiKey;

#[tokio::test]
async fn f32_topics_are_judged_by_what_their_acknowledgement_is_worth() {
    let kafka = require_service!(shared().await);
    let (plain, narrow) =
        (topic_with(kafka, 3, &[]).await, topic_with(kafka, 1, &["max.message.bytes=5000"]).await);
    let sink = build(config(kafka)).await;
    let names = [plain.clone(), narrow.clone(), "not-there".to_owned(), "no topic".to_owned()];
    let findings = sink.examine(&names).await;
    for (check, about, level) in [
        ("reachable", "1 brokers", Level::Ok),
        ("authenticated", "without credentials", Level::Ok),
        ("transport", "not encrypted", Level::Ok),
        ("version", "0.11 or later", Level::Ok),
        ("destination", plain.as_str(), Level::Ok),
        ("destination", "not-there", Level::Fail),
        ("destination", "no topic", Level::Fail),
        ("durability", plain.as_str(), Level::Warn),
        ("payload", plain.as_str(), Level::Ok),
        ("payload", narrow.as_str(), Level::Warn),
    ] {
        assert_found(&findings, check, level, about);
    }
    assert_found(&findings, "destination", Level::Ok, "3 partitions");
    assert!(findings.iter().all(|finding| posthaste_brokers::kafka::CHECKS.contains(&&*finding.check)));
    assert_eq!(kafka.dump(&plain).await.expect("read").len(), 0, "an examination produces nothing");
}

/// No broker of 2016 runs here, so this one is librdkafka's own, with the request taken out that came with
/// 0.11. An outage of the sink: no event spends an attempt on it.
#[tokio::test]
async fn brokers_that_are_too_old_are_named_and_cost_no_event_an_attempt() {
    let old = MockCluster::new(1).expect("a broker");
    old.apiversion(RDKafkaApiKey::InitProducerId, None, None).expect("forgotten");
    old.create_topic("t", 1, 1).expect("a topic");
    let sink = build(KafkaConfig::new(&old.bootstrap_servers())).await;
    let findings = sink.examine(&["t".to_owned()]).await;
    assert_found(&findings, "version", Level::Fail, "0.11 or later");
    let words = until_failed(&sink, "t", "kafka.unsupported").await;
    assert!(words.contains("0.11 or later"), "{words}");
    assert_seen(&publish_one(&sink, loose("t")).await, "retry", "kafka.unsupported", Scope::Sink);
}

#[tokio::test]
async fn nobody_there_is_said_with_the_address() {
    let sink = build(KafkaConfig::new("kafka://127.0.0.1:1")).await;
    let findings = sink.examine(&["t".to_owned()]).await;
    assert_only_unreachable(&findings, "127.0.0.1:1");
}
