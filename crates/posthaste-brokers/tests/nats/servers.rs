//! Which servers are used, and how they are reached.

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair, Port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A member of a cluster that tells of another one and does not answer.
async fn teller(other: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    let info = format!("INFO {{\"headers\":true,\"connect_urls\":[\"{other}\"]}}\r\nPONG\r\n");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(info.as_bytes()).await.expect("taken");
            // The login, and then it hangs up.
            let _ = stream.read(&mut [0; 1_024]).await;
        }
    });
    url
}

#[tokio::test]
async fn discovered_servers_are_used_if_they_are_asked_for() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let url = teller(&bed.server.addr().to_string()).await;
    let alone = build(NatsConfig::new(&url)).await;
    let asking = build(NatsConfig { discover_servers: true, ..NatsConfig::new(&url) }).await;
    until_delivered(&asking, "s", DEADLINE).await;
    let verdict = publish_one(&alone, loose("s")).await;
    assert_seen(&verdict, "retry", "nats.unreachable", Scope::Sink);
    assert!(seen(&verdict).3.contains(&url), "{verdict:?}");
}

/// Whatever the order is, each of them is tried.
#[tokio::test]
async fn shuffled_servers_are_all_tried() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let urls = format!("nats://127.0.0.1:1, {}, nats://127.0.0.1:2", bed.server.url());
    let sink = build(NatsConfig { shuffle_servers: true, ..NatsConfig::new(&urls) }).await;
    until_delivered(&sink, "s", DEADLINE).await;
}

#[tokio::test]
async fn a_websocket_carries_messages_and_acknowledgements() {
    let port = Port::claim().expect("a port");
    let setting = format!("websocket {{ listen: \"{}\", no_tls: true }}", port.addr());
    let bed = require_service!(Bed::start(&NatsOptions::default().setting(&setting)).await);
    bed.stream("S", &["s"]).await;
    let sink = build(NatsConfig::new(&format!("ws://{}", port.addr()))).await;
    until_delivered(&sink, "s", DEADLINE).await;
    assert_delivered(&sink.publish(&many("s", 500)).await);
    let large = message("s", Event::new("orders.placed", vec![7; 900_000]));
    assert_eq!(publish_one(&sink, large).await, Verdict::Delivered);
    assert_eq!(bed.stored("S").await.len(), 502);
    // The server wants nothing else there.
    let verdict =
        publish_one(&build(NatsConfig::new(&format!("nats://{}", port.addr()))).await, loose("s")).await;
    assert_eq!(seen(&verdict).0, "retry", "{verdict:?}");
}

#[tokio::test]
async fn f29_a_websocket_with_tls_is_verified() {
    let (certs, port) = (Certs::make().expect("certificates"), Port::claim().expect("a port"));
    let Pair { certificate, key } = certs.server();
    let setting = format!(
        "websocket {{ listen: \"{}\", tls {{ cert_file: {certificate:?}, key_file: {key:?} }} }}",
        port.addr()
    );
    let server = require_service!(Nats::start(&NatsOptions::default().setting(&setting)).await);
    let base = NatsConfig::new(&format!("wss://{}", port.addr()));
    let trusting = base.clone().with(|options| options.ca_file = Some(certs.ca().to_owned()));
    assert_gets_in(trusting.clone()).await;
    let stranger = Certs::make().expect("certificates");
    for config in [base, trusting.with(|options| options.ca_file = Some(stranger.ca().to_owned()))] {
        until_failed(&build(config).await, "nowhere", "nats.tls").await;
    }
    drop(server);
}
