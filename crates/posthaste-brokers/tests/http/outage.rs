//! Receivers that vanish, networks that lie: nothing is lost, order is kept, delivery goes on by itself.

use super::*;
use posthaste_testkit::services::{Certs, Proxy, Recorded};

/// What the receiver was sent, in order.
fn copies(receiver: &Receiver) -> Vec<Copy> {
    let copy = |request: Recorded| Copy {
        id: request.header("webhook-id").expect("an id").to_owned(),
        key: request.header("key").map(str::to_owned),
        payload: request.body.to_vec(),
    };
    receiver.requests().into_iter().map(copy).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_connections_are_cut_under_load() {
    let receiver = receiver().await;
    let (proxy, url) = Proxy::start_before(&receiver.url()).await.expect("a proxy");
    let sink = build(HttpConfig { allow_private: true, ..HttpConfig::new(&url) }).await;
    let load = Load::start(&sink, "x");
    for round in 1..=5 {
        load.more(400).await;
        if round % 2 == 0 {
            proxy.refuse().await;
        }
        proxy.cut().await;
        proxy.pass().await;
    }
    load.more(400).await;
    let account = load.end().await;
    // A host that is gone is its own affair, never the sink's.
    assert!(account.codes().iter().all(|(_, _, scope)| *scope == "Destination"), "{:?}", account.failures);
    account.assert_all_there_in_order(&copies(&receiver));
}

/// Requests arrive, answers do not: all of it may be there, and is sent again.
async fn half_open(receiver: &Receiver, config: HttpConfig, proxy: &Proxy) {
    let sink = build(config.with(|options| options.delivery_timeout_ms = 3_000)).await;
    let number = |n: usize| numbered("x", &format!("key-{}", n % 50), n);
    assert_eq!(publish_one(&sink, number(0)).await, Verdict::Delivered);
    proxy.half_open().await;
    let messages: Vec<_> = (1..=100).map(number).collect();
    let verdicts = sink.publish(&messages).await;
    assert!(verdicts.iter().any(|verdict| matches!(verdict, Verdict::Unknown(_))), "{verdicts:?}");
    assert!(!verdicts.contains(&Verdict::Delivered), "{verdicts:?}");
    proxy.pass().await;
    let delivered = publish_until_delivered(&sink, messages).await.into_iter().collect();
    let account = Account { delivered, ..Account::default() };
    assert_eq!(account.delivered.len(), 100);
    account.assert_all_there_in_order(&copies(receiver));
}

#[tokio::test]
async fn a_half_open_connection_is_left_behind() {
    let receiver = receiver().await;
    let (proxy, url) = Proxy::start_before(&receiver.url()).await.expect("a proxy");
    half_open(&receiver, HttpConfig { allow_private: true, ..HttpConfig::new(&url) }, &proxy).await;
}

#[tokio::test]
async fn so_is_one_of_http2() {
    let certs = Certs::make().expect("certificates");
    let options = ReceiverOptions::default().tls(certs.server()).http2();
    let receiver = Receiver::start(&options).await.expect("a receiver");
    let (proxy, url) = Proxy::start_before(&receiver.url()).await.expect("a proxy");
    let ca_file = Some(certs.ca().to_owned());
    half_open(
        &receiver,
        HttpConfig { allow_private: true, ..HttpConfig::new(&url).with(|options| options.ca_file = ca_file) },
        &proxy,
    )
    .await;
    assert!(receiver.requests().iter().all(|request| request.version == "HTTP/2"));
}
