//! Receivers that vanish, networks that lie: nothing is lost, order is kept, delivery goes on by itself.

use super::*;
use posthaste_testkit::services::{Certs, Proxy, Recorded};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What the relay does with undelivered messages, in small: again, in the same order, until delivered.
async fn publish_until_delivered(sink: &Arc<dyn Sink>, mut messages: Vec<Message>) -> Vec<String> {
    let (started, mut delivered) = (Instant::now(), Vec::new());
    while !messages.is_empty() {
        assert!(started.elapsed() < DEADLINE, "{} messages are still undelivered", messages.len());
        let verdicts = sink.publish(&messages).await;
        let mut left = Vec::new();
        for (message, verdict) in messages.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Delivered => delivered.push(message.id()),
                Verdict::Rejected(failure) => panic!("an outage rejects nothing: {failure:?}"),
                Verdict::Retry(failure) | Verdict::Unknown(failure) => {
                    assert_eq!(failure.scope, Scope::Destination, "{failure:?}");
                    left.push(message);
                }
                Verdict::Held => left.push(message),
            }
        }
        messages = left;
    }
    delivered
}

/// First deliveries of each key came in order, and everything that was called delivered is there.
fn assert_in_order(requests: &[Recorded], delivered: &[String]) {
    let mut last: BTreeMap<&str, u32> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for request in requests {
        let (id, key) = (request.header("webhook-id").expect("an id"), request.header("key").expect("a key"));
        // A second copy may come anywhere; first deliveries keep their order (G3).
        if ids.insert(id) {
            let number = String::from_utf8_lossy(&request.body).parse().expect("a number");
            let before = last.insert(key, number);
            assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
        }
    }
    assert!(delivered.iter().all(|id| ids.contains(id.as_str())), "a delivered event is not there");
}

fn number(n: u32) -> Message {
    message("x", Event::new("orders.placed", n.to_string()).with_key(format!("key-{}", n % 50)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_connections_are_cut_under_load() {
    let receiver = receiver().await;
    let (proxy, url) = Proxy::start_before(&receiver.url()).await.expect("a proxy");
    let sink = build(HttpConfig { allow_private: true, ..HttpConfig::new(&url) }).await;
    let load = tokio::spawn(async move {
        let mut delivered = Vec::new();
        for batch in 0..10 {
            let messages = (0..300).map(|n| number(batch * 300 + n)).collect();
            delivered.extend(publish_until_delivered(&sink, messages).await);
        }
        delivered
    });
    for round in 1..=5 {
        receiver.until(round * 400).await;
        if round % 2 == 0 {
            proxy.refuse().await;
        }
        proxy.cut().await;
        proxy.pass().await;
    }
    let delivered = load.await.expect("the load ends");
    assert_eq!(delivered.len(), 3_000);
    assert_in_order(&receiver.requests(), &delivered);
}

/// Requests arrive, answers do not: all of it may be there, and is sent again.
async fn half_open(receiver: &Receiver, config: HttpConfig, proxy: &Proxy) {
    let sink = build(HttpConfig { delivery_timeout_ms: 700, ..config }).await;
    assert_eq!(publish_one(&sink, number(0)).await, Verdict::Delivered);
    proxy.half_open().await;
    let messages: Vec<_> = (1..=100).map(number).collect();
    let verdicts = sink.publish(&messages).await;
    assert!(verdicts.iter().any(|verdict| matches!(verdict, Verdict::Unknown(_))), "{verdicts:?}");
    assert!(!verdicts.contains(&Verdict::Delivered), "{verdicts:?}");
    proxy.pass().await;
    let delivered = publish_until_delivered(&sink, messages).await;
    assert_eq!(delivered.len(), 100);
    assert_in_order(&receiver.requests(), &delivered);
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
    half_open(&receiver, HttpConfig { allow_private: true, ca_file, ..HttpConfig::new(&url) }, &proxy).await;
    assert!(receiver.requests().iter().all(|request| request.version == "HTTP/2"));
}
