//! What `posthaste doctor` finds.

use super::*;
use posthaste::sink::Level;
use posthaste_testkit::require_service;

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

#[tokio::test]
async fn nobody_there_is_said_with_the_address() {
    let sink = build(KafkaConfig::new("kafka://127.0.0.1:1")).await;
    let findings = sink.examine(&["t".to_owned()]).await;
    assert_only_unreachable(&findings, "127.0.0.1:1");
}
