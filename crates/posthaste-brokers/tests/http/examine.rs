//! What `posthaste doctor` is told.

use super::*;
use posthaste::sink::Level;
use posthaste_brokers::Secret;
use posthaste_testkit::services::{Certs, Port};

#[tokio::test]
async fn a_healthy_receiver_is_visited_and_not_asked() {
    let certs = Certs::make().expect("certificates");
    let options = ReceiverOptions::default().tls(certs.server());
    let receiver = Receiver::start(&options).await.expect("a receiver");
    let config = HttpConfig {
        secrets: vec![Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
        ..near(&receiver).with(|options| options.ca_file = Some(certs.ca().to_owned()))
    };
    let findings = build(config).await.examine(&["a".to_owned(), "b".to_owned()]).await;
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
    assert_found(&findings, "destination", Level::Ok, "\"a\"");
    assert_found(&findings, "reachable", Level::Ok, "certificate is good");
    assert_found(&findings, "transport", Level::Ok, "TLS");
    assert_found(&findings, "signature", Level::Ok, "signed");
    assert_found(&findings, "durability", Level::Ok, "promise");
    let visits = findings.iter().filter(|finding| finding.check == "reachable").count();
    assert_eq!((visits, receiver.connections(), receiver.requests().len()), (1, 1, 0));
}

/// Routes by pattern name no destination.
#[tokio::test]
async fn the_host_of_the_base_is_visited_without_any_destination() {
    let receiver = receiver().await;
    assert_found(&build(near(&receiver)).await.examine(&[]).await, "reachable", Level::Ok, &receiver.url());
    let port = Port::claim().expect("a port");
    let down =
        HttpConfig { allow_private: true, ..HttpConfig::new(&format!("http://{}/hooks", port.addr())) };
    assert_found(&build(down).await.examine(&[]).await, "reachable", Level::Fail, "refused");
}

#[tokio::test]
async fn what_is_wrong_or_weak_is_named() {
    let (receiver, port) = (receiver().await, Port::claim().expect("a port"));
    let allow_networks = vec!["127.0.0.0/8".to_owned()];
    let sink = build(HttpConfig { allow_networks, ..HttpConfig::for_whole_urls() }).await;
    let destinations = [
        format!("{}/x", receiver.url()),
        format!("http://{}/x", port.addr()),
        format!("https://{}/x", receiver.addr()),
        "http://10.0.0.1/x".to_owned(),
        "https://no-such-host.invalid/x".to_owned(),
        "orders.placed".to_owned(),
    ];
    let findings = sink.examine(&destinations).await;
    assert_found(&findings, "reachable", Level::Ok, &receiver.url());
    assert_found(&findings, "transport", Level::Ok, "not encrypted");
    assert_found(&findings, "reachable", Level::Fail, "refused");
    assert_found(&findings, "reachable", Level::Fail, "no TLS connection");
    assert_found(&findings, "reachable", Level::Fail, "no-such-host");
    assert_found(&findings, "address", Level::Fail, "10.0.0.1 is not a public address");
    assert_found(&findings, "destination", Level::Fail, "\"orders.placed\" is no URL");
    assert_found(&findings, "signature", Level::Warn, "not signed");
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn certificates_are_judged() {
    let certs = Certs::make().expect("certificates");
    let options = ReceiverOptions::default().tls(certs.expired_server());
    let receiver = Receiver::start(&options).await.expect("a receiver");
    let config = near(&receiver).with(|options| options.ca_file = Some(certs.ca().to_owned()));
    let findings = build(config).await.examine(&["x".to_owned()]).await;
    assert_found(&findings, "reachable", Level::Fail, "expired");
}
