//! TLS: the right receiver gets the events, and every wrong one is refused by name (F29).

use super::*;
use posthaste_testkit::services::{Certs, Pair};
use std::path::Path;

async fn start(server: &Pair) -> Receiver {
    Receiver::start(&ReceiverOptions::default().tls(server)).await.expect("a receiver")
}

fn trusting(receiver: &Receiver, ca: &Path) -> HttpConfig {
    HttpConfig { ca_file: Some(ca.to_owned()), ..near(receiver) }
}

async fn assert_gets_in(config: HttpConfig) {
    assert_eq!(publish_one(&build(config).await, loose("x")).await, Verdict::Delivered);
}

async fn assert_refused(config: HttpConfig, because: &str) {
    assert_no_trust(&build(config).await, "x", "http.tls", &[because]).await;
}

#[tokio::test]
async fn f29_the_authority_decides() {
    let certs = Certs::make().expect("certificates");
    let receiver = start(certs.server()).await;
    assert_gets_in(trusting(&receiver, certs.ca())).await;
    assert_refused(trusting(&receiver, certs.other_ca()), "UnknownIssuer").await;
    assert_refused(near(&receiver), "UnknownIssuer").await;
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn f29_an_expired_certificate_is_refused() {
    let certs = Certs::make().expect("certificates");
    let receiver = start(certs.expired_server()).await;
    assert_refused(trusting(&receiver, certs.ca()), "expired").await;
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn f29_a_certificate_for_another_name_is_refused() {
    let certs = Certs::make().expect("certificates");
    let receiver = start(certs.elsewhere()).await;
    assert_refused(trusting(&receiver, certs.ca()), "not valid for name").await;
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn a_receiver_may_ask_who_we_are() {
    let certs = Certs::make().expect("certificates");
    let options = ReceiverOptions::default().mutual_tls(certs.server(), certs.ca());
    let receiver = Receiver::start(&options).await.expect("a receiver");
    let with = |pair: &Pair| HttpConfig {
        cert_file: Some(pair.certificate.clone()),
        key_file: Some(pair.key.clone()),
        ..trusting(&receiver, certs.ca())
    };
    assert_gets_in(with(&certs.client("shop").expect("a certificate"))).await;
    assert_refused(with(&certs.stranger("shop").expect("a certificate")), "alert").await;
    assert_refused(trusting(&receiver, certs.ca()), "alert").await;
    assert_eq!(receiver.requests().len(), 1);
}

/// Asked for TLS, nothing is sent without it.
#[tokio::test]
async fn f29_http_is_refused_where_tls_is_required() {
    let (receiver, certs) = (receiver().await, Certs::make().expect("certificates"));
    let required = HttpConfig { require_tls: true, ..near(&receiver) };
    let implied = trusting(&receiver, certs.ca());
    for config in [required, implied] {
        let error = SinkConfig::Http(Box::new(config)).build("test").await.err().expect("refused");
        assert_eq!(error.option_name(), "url");
    }
    // A server without TLS behind an https:// URL.
    let url = receiver.url().replace("http://", "https://");
    let config = HttpConfig { allow_private: true, ..HttpConfig::new(&url) };
    let verdict = publish_one(&build(config).await, loose("x")).await;
    assert_seen(&verdict, "retry", "http.tls", Scope::Destination);
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn http2_is_spoken_where_it_is_offered() {
    let certs = Certs::make().expect("certificates");
    let options = ReceiverOptions::default().tls(certs.server()).http2();
    let receiver = Receiver::start(&options).await.expect("a receiver");
    let sink = build(trusting(&receiver, certs.ca())).await;
    let event = |n: i32| Event::new("orders.placed", n.to_string()).with_header("Connection", "close");
    let messages: Vec<_> = (0..100).map(|n| message("x", event(n))).collect();
    assert_delivered(&sink.publish(&messages).await);
    let requests = receiver.requests();
    assert_eq!(requests.len(), 100);
    assert!(requests.iter().all(|request| request.version == "HTTP/2"));
    // The first ones may have dialled side by side.
    assert!(receiver.connections() <= 32, "{}", receiver.connections());
    let again = receiver.connections();
    assert_delivered(&sink.publish(&messages).await);
    assert_eq!(receiver.connections(), again, "one connection serves all of them");
}
