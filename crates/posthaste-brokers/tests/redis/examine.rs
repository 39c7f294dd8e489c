//! What `posthaste doctor` is told.

use super::*;
use posthaste::sink::Level;
use posthaste_brokers::Secret;
use posthaste_testkit::require_service;

#[tokio::test]
async fn a_durable_server_and_its_streams() {
    let bed = require_service!(Bed::start(&RedisOptions::default().setting("appendfsync always")).await);
    bed.run(&["XADD", "there", "*", "id", "x"]).await;
    let sink = bed.sink().await;
    let findings = sink.examine(&["there".to_owned(), "new".to_owned()]).await;
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
    for check in ["reachable", "authenticated", "transport", "version", "durability", "retention", "dedup"] {
        assert_eq!(of(&findings, check).len(), 1, "{check}: {findings:?}");
    }
    assert_found(&findings, "destination", Level::Ok, "\"there\" is there");
    assert_found(&findings, "destination", Level::Ok, "\"new\" can be written to; its first event makes it");
    assert_eq!((bed.length("there").await, bed.length("new").await), (1, 0), "nothing is added");
}

#[tokio::test]
async fn f42_what_can_take_an_acknowledged_event_is_named() {
    let bed = require_service!(Bed::open().await);
    let sink = build(RedisConfig { maxlen: Some(7), ..bed.config() }).await;
    let findings = sink.examine(&[]).await;
    assert_found(&findings, "durability", Level::Warn, "appendfsync everysec");
    assert_found(&findings, "retention", Level::Warn, "7 entries");
    bed.run(&["CONFIG", "SET", "appendfsync", "always", "no-appendfsync-on-rewrite", "yes"]).await;
    assert_found(&sink.examine(&[]).await, "durability", Level::Warn, "no-appendfsync-on-rewrite");
    bed.run(&["CONFIG", "SET", "appendonly", "no"]).await;
    bed.run(&["CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "allkeys-lru"]).await;
    let findings = sink.examine(&[]).await;
    assert_found(&findings, "durability", Level::Warn, "appendonly no");
    assert_found(&findings, "durability", Level::Warn, "allkeys-lru");
    assert!(of(&findings, "durability").iter().all(|(level, _)| *level == Level::Warn));
}

#[tokio::test]
async fn destinations_that_cannot_be_written_to_are_named() {
    let options = RedisOptions::default()
        .setting("user shop on >pw resetkeys ~open:* +xadd +multi +exec +discard +ping +type");
    let bed = require_service!(Bed::start(&options).await);
    bed.run(&["SET", "open:text", "x"]).await;
    let config = bed.config().with(|options| {
        options.user = Some("shop".into());
        options.password = Some(Secret::new("pw"));
    });
    let sink = build(config).await;
    let destinations = ["open:a", "shut", "open:text", ""].map(str::to_owned);
    let findings = sink.examine(&destinations).await;
    assert_found(&findings, "authenticated", Level::Ok, "user \"shop\"");
    assert_found(&findings, "destination", Level::Ok, "\"open:a\"");
    assert_found(&findings, "destination", Level::Fail, "may not write to the key \"shut\"");
    assert_found(&findings, "destination", Level::Fail, "\"open:text\" is a string");
    assert_found(&findings, "destination", Level::Fail, "empty");
    // Rights that delivery does not need are no failure.
    assert_found(&findings, "durability", Level::Warn, "cannot see");
    assert!(of(&findings, "version").is_empty());
    bed.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_found(&sink.examine(&["open:a".to_owned()]).await, "destination", Level::Fail, "OOM");
}

#[tokio::test]
async fn a_server_that_is_down_is_one_finding() {
    let mut bed = require_service!(Bed::open().await);
    bed.server.stop().await.expect("stopped");
    let findings = bed.sink().await.examine(&["x".to_owned()]).await;
    assert_only_unreachable(&findings, &bed.server.addr().to_string());
}
