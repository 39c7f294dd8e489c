//! TLS: the right receiver gets the events, and every wrong one is refused by name (F29).

use super::*;
use crate::ground::tls::{Gate, tls_suite};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair, ServiceError};
use std::path::Path;

impl Gate for Receiver {
    const REFUSED: &str = "http.tls";
    const PLACE: (&str, Option<&str>) = ("x", None);

    async fn open(server: &Pair, client_ca: Option<&Path>) -> Result<Self, ServiceError> {
        let options = ReceiverOptions::default();
        let options = client_ca.map_or(options.clone().tls(server), |ca| options.mutual_tls(server, ca));
        Receiver::start(&options).await
    }

    fn way(&self, ca: Option<&Path>, pair: Option<&Pair>) -> SinkConfig {
        SinkConfig::Http(Box::new(near(self).with(|options| {
            options.ca_file = ca.map(Path::to_owned);
            options.cert_file = pair.map(|pair| pair.certificate.clone());
            options.key_file = pair.map(|pair| pair.key.clone());
        })))
    }
}

tls_suite!(Receiver);

/// Who is refused is sent nothing.
#[tokio::test]
async fn f29_nothing_is_sent_to_whom_we_do_not_trust() {
    let certs = Certs::make().expect("certificates");
    for server in [certs.expired_server(), certs.elsewhere()] {
        let receiver = Receiver::open(server, None).await.expect("a receiver");
        let sink = build(trusting(&receiver, certs.ca())).await;
        assert_no_trust(&sink, "x", "http.tls", &["expired", "not valid for name"]).await;
        assert!(receiver.requests().is_empty());
    }
}

fn trusting(receiver: &Receiver, ca: &Path) -> HttpConfig {
    near(receiver).with(|options| options.ca_file = Some(ca.to_owned()))
}

/// Asked for TLS, nothing is sent without it.
#[tokio::test]
async fn f29_http_is_refused_where_tls_is_required() {
    let (receiver, certs) = (receiver().await, Certs::make().expect("certificates"));
    let required = near(&receiver).with(|options| options.require_tls = true);
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
