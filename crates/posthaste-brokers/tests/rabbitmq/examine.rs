//! What `posthaste doctor` is told.

use super::*;
use posthaste::sink::Level;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Certs;

#[tokio::test]
async fn a_healthy_broker_and_its_places() {
    let bed = require_service!(Bed::open().await);
    let (queue, exchange) = (bed.queue().await, unique("ex"));
    bed.exchange(&exchange).await;
    let sink = bed.sink().await;
    let destinations = [queue.clone(), format!("{exchange}/a"), format!("{exchange}/b")];
    let findings = sink.examine(&destinations).await;
    for check in ["reachable", "authenticated", "transport", "version"] {
        assert!(matches!(of(&findings, check)[..], [(Level::Ok, _)]), "{check}: {findings:?}");
    }
    assert_found(&findings, "reachable", Level::Ok, "RabbitMQ 3.");
    assert_found(&findings, "authenticated", Level::Ok, "guest");
    assert_found(&findings, "destination", Level::Ok, &format!("the queue {queue:?} is there"));
    assert_found(&findings, "destination", Level::Ok, "shows only when an event is published");
    // One remark for a queue and one for an exchange, though that is two destinations'.
    assert_eq!(of(&findings, "durability").len(), 2);
    assert_found(&findings, "durability", Level::Warn, "quorum_queues");
    assert!(bed.take(&queue).await.is_empty(), "an examination publishes nothing");
    let told =
        build(RabbitmqConfig { quorum_queues: true, ..bed.config() }).await.examine(&destinations).await;
    assert!(of(&told, "durability").iter().all(|(level, _)| *level == Level::Ok), "{told:?}");
    assert_found(&told, "durability", Level::Ok, "by the word of quorum_queues");
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let bed = require_service!(Bed::open().await);
    let queue = bed.queue().await;
    let sink = bed.sink().await;
    let long = "x".repeat(256);
    let destinations = ["nowhere", "no-exchange/k", &long, &queue].map(str::to_owned);
    let findings = sink.examine(&destinations).await;
    assert_found(&findings, "destination", Level::Fail, "the queue \"nowhere\" is not there");
    assert_found(&findings, "destination", Level::Fail, "the exchange \"no-exchange\"");
    assert_found(&findings, "destination", Level::Fail, "255 bytes");
    // Each question that was refused has cost a channel; the next is answered all the same.
    assert_found(&findings, "destination", Level::Ok, &queue);
    assert_eq!(publish_one(&sink, loose(&queue)).await, Verdict::Delivered);
}

#[tokio::test]
async fn a_broker_that_is_down_is_one_finding() {
    let sink = build(RabbitmqConfig::new("amqp://127.0.0.1:1")).await;
    let findings = sink.examine(&["x".to_owned()]).await;
    assert_only_unreachable(&findings, "amqp://127.0.0.1:1");
}

/// A user who may only write needs nothing else, and is not told otherwise.
#[tokio::test]
async fn rights_that_delivery_does_not_need_are_no_failure() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let (name, exchange, queue) = (unique("shop"), unique("ex"), bed.queue().await);
    bed.exchange(&exchange).await;
    bed.bind(&queue, &exchange, "k").await;
    server.add_user(&name, "pw", ["", &format!("^{exchange}$"), ""]).await.expect("a user");
    let listener = server.tls_listener(certs.server(), None).await.expect("a port");
    let config = RabbitmqConfig::new(&listener.url()).with(|options| {
        options.user = Some(name.clone());
        options.password = Some(posthaste_brokers::Secret::new("pw"));
        options.ca_file = Some(certs.ca().to_owned());
    });
    let sink = build(config).await;
    let findings = sink.examine(&[format!("{exchange}/k")]).await;
    assert_found(&findings, "authenticated", Level::Ok, &name);
    assert_found(&findings, "transport", Level::Ok, "TLS");
    assert!(findings.iter().all(|finding| finding.level != Level::Fail), "{findings:?}");
    assert_eq!(publish_one(&sink, loose(&format!("{exchange}/k"))).await, Verdict::Delivered);
}
