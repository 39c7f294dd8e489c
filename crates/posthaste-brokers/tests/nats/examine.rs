//! What `posthaste doctor` is told.

use super::*;
use async_nats::jetstream::stream::{RetentionPolicy, StorageType};
use posthaste::sink::Level;
use posthaste_testkit::require_service;

#[tokio::test]
async fn a_healthy_server_and_its_stream() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["orders.>"]).await;
    let sink = bed.sink().await;
    let findings = sink.examine(&["orders.placed".to_owned(), "orders.paid".to_owned()]).await;
    for check in ["reachable", "authenticated", "transport", "version", "payload"] {
        assert!(matches!(of(&findings, check)[..], [(Level::Ok, _)]), "{check}: {findings:?}");
    }
    assert_found(&findings, "destination", Level::Ok, "\"orders.placed\" goes to stream \"S\"");
    assert_found(&findings, "destination", Level::Ok, "\"orders.paid\" goes to stream \"S\"");
    // One stream, one remark, though it is two destinations'.
    assert_eq!(of(&findings, "durability").len(), 1);
    assert_eq!(sink.dedup_window("orders.paid").await, Some(Duration::from_secs(120)));
    assert_eq!(sink.dedup_window("nowhere").await, None);
    assert_found(&findings, "durability", Level::Warn, "one replica");
    assert_found(&findings, "durability", Level::Warn, "sync_interval");
    assert!(bed.stored("S").await.is_empty(), "an examination publishes nothing");
}

#[tokio::test]
async fn what_is_missing_or_weak_is_named() {
    let bed = require_service!(Bed::start(&NatsOptions::default().setting("max_payload: 65536")).await);
    bed.stream_with(stream::Config { storage: StorageType::Memory, ..plain("MEM", &["mem"]) }).await;
    bed.stream_with(stream::Config {
        duplicate_window: Duration::from_secs(10),
        ..plain("SHORT", &["short"])
    })
    .await;
    bed.stream_with(stream::Config { no_ack: true, ..plain("MUTE", &["mute"]) }).await;
    bed.stream_with(stream::Config { retention: RetentionPolicy::Interest, ..plain("LOOSE", &["loose"]) })
        .await;
    let sink = bed.sink().await;
    let destinations = ["mem", "short", "mute", "loose", "nowhere", "bad subject"].map(str::to_owned);
    let findings = sink.examine(&destinations).await;
    assert_found(&findings, "durability", Level::Warn, "\"MEM\" is in memory");
    assert_eq!(sink.dedup_window("short").await, Some(Duration::from_secs(10)));
    assert_found(&findings, "acknowledgement", Level::Fail, "\"MUTE\" never acknowledges");
    assert_found(&findings, "retention", Level::Warn, "\"LOOSE\"");
    assert_found(&findings, "destination", Level::Fail, "no stream takes the subject \"nowhere\"");
    assert_found(&findings, "destination", Level::Fail, "\"bad subject\"");
    assert_found(&findings, "payload", Level::Warn, "65536");
}

#[tokio::test]
async fn a_server_that_is_down_is_one_finding() {
    let mut bed = require_service!(Bed::open().await);
    bed.server.stop().await.expect("stopped");
    let findings = bed.sink().await.examine(&["x".to_owned()]).await;
    assert_only_unreachable(&findings, &bed.server.addr().to_string());
}

/// A user with no more rights than delivery needs cannot ask for streams.
#[tokio::test]
async fn rights_that_delivery_does_not_need_are_no_failure() {
    let users = r#"authorization { users: [
        { user: "shop", password: "pw", permissions: { publish: ["s"], subscribe: ["_INBOX.>"] } }
    ] }"#;
    let server = require_service!(Nats::start(&NatsOptions::default().setting(users)).await);
    let password = Some(posthaste_brokers::Secret::new("pw"));
    let config = NatsConfig::new(&server.url()).with(|options| {
        options.user = Some("shop".into());
        options.password = password;
    });
    let findings = build(config).await.examine(&["s".to_owned()]).await;
    assert_found(&findings, "authenticated", Level::Ok, "user \"shop\"");
    assert_found(&findings, "destination", Level::Warn, "cannot see");
    assert_found(&findings, "destination", Level::Warn, "not allowed to ask");
    assert!(findings.iter().all(|finding| finding.level != Level::Fail), "{findings:?}");
}
