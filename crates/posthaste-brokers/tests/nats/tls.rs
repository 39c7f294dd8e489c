//! TLS: the right server gets the events, and every wrong one is refused by name (F29).

use super::*;
use crate::ground::tls::{Gate, ReadGate, source_tls_suite, tls_suite};
use posthaste::consumer::Order;
use posthaste::source::Source;
use posthaste::source::leased::PlainLog;
use posthaste_brokers::GroupMember;
use posthaste_brokers::nats::{NatsLog, NatsQueue};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair};
use std::path::Path;

impl Gate for Nats {
    const REFUSED: &str = "nats.tls";
    const PLACE: (&str, Option<&str>) = ("nowhere", Some("nats.no_stream"));

    async fn open(server: &Pair, client_ca: Option<&Path>) -> Result<Self, ServiceError> {
        let options = NatsOptions::default();
        let options = client_ca.map_or(options.clone().tls(server), |ca| options.mutual_tls(server, ca));
        Nats::start(&options).await
    }

    fn way(&self, ca: Option<&Path>, pair: Option<&Pair>) -> SinkConfig {
        SinkConfig::Nats(Box::new(NatsConfig::new(&self.url()).with(|options| {
            options.ca_file = ca.map(Path::to_owned);
            options.cert_file = pair.map(|pair| pair.certificate.clone());
            options.key_file = pair.map(|pair| pair.key.clone());
        })))
    }
}

tls_suite!(Nats);

impl ReadGate for Nats {
    fn readers(&self, ca: &Path) -> (Arc<dyn PlainLog>, Arc<dyn Source>) {
        let config = NatsConfig::new(&self.url()).with(|options| options.ca_file = Some(ca.to_owned()));
        let plan = GroupMember { order: Order::None, ..GroupMember::new("billing", ["NOWHERE"]) };
        let queue = NatsQueue::start(&config, &plan).expect("valid");
        (Arc::new(NatsLog::new(&config).expect("valid")), Arc::new(queue))
    }
}

source_tls_suite!(Nats);

/// The scheme does not matter: a server that requires TLS gets it.
#[tokio::test]
async fn f29_a_server_that_requires_tls_gets_it() {
    let certs = Certs::make().expect("certificates");
    let server = require_service!(Nats::start(&NatsOptions::default().tls(certs.server())).await);
    let plain_url = server.url().replace("tls://", "nats://");
    assert_gets_in(NatsConfig::new(&plain_url).with(|options| options.ca_file = Some(certs.ca().to_owned())))
        .await;
}

/// A server that begins with TLS, for clients that do; others are greeted a moment later.
fn tls_first(certs: &Certs) -> String {
    let Pair { certificate, key } = certs.server();
    format!("tls {{ cert_file: {certificate:?}, key_file: {key:?}, handshake_first: \"1s\" }}")
}

/// A limit that is said before TLS may be anybody's: it is no reason for giving an event up. Under TLS it is.
#[tokio::test]
async fn f29_only_a_limit_that_was_said_under_tls_rejects() {
    let certs = Certs::make().expect("certificates");
    let options = NatsOptions::default().setting(&tls_first(&certs)).setting("max_payload: 4096");
    let server = require_service!(Nats::start(&options).await);
    let base = NatsConfig::new(&server.url()).with(|options| options.ca_file = Some(certs.ca().to_owned()));
    for first in [false, true] {
        let sink = build(NatsConfig { tls_first: first, ..base.clone() }).await;
        until_failed(&sink, "nowhere", "nats.no_stream").await;
        assert_eq!(sink.capabilities().payload_bytes_max, first.then_some(4_096));
        let verdict = publish_one(&sink, message("s", Event::new("orders.placed", vec![0; 5_000]))).await;
        let expected = if first { "rejected" } else { "retry" };
        assert_seen(&verdict, expected, "nats.too_large", Scope::Event);
    }
}

/// Asked to begin with TLS, nothing is heard and nothing is said without it.
#[tokio::test]
async fn f29_tls_first() {
    let certs = Certs::make().expect("certificates");
    let server = require_service!(Nats::start(&NatsOptions::default().setting(&tls_first(&certs))).await);
    let first = NatsConfig { tls_first: true, ..NatsConfig::new(&server.url()) };
    assert_gets_in(first.clone().with(|options| options.ca_file = Some(certs.ca().to_owned()))).await;
    until_failed(&build(first).await, "nowhere", "nats.tls").await;
    let bed = require_service!(Bed::open().await);
    let verdict = publish_one(&build(NatsConfig { tls_first: true, ..bed.config() }).await, loose("s")).await;
    assert_seen(&verdict, "retry", "nats.tls", Scope::Sink);
}

/// Authority, server and client are all replaced while events flow: the files are read at the next
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_rotated_under_load_and_nothing_is_lost() {
    let (old, new) = (Certs::make().expect("certificates"), Certs::make().expect("certificates"));
    let (client, later) = (old.client("shop").expect("a pair"), new.client("shop").expect("a pair"));
    let client = TestPair::copy(&client);
    let options = NatsOptions::default().mutual_tls(old.server(), old.ca());
    let mut server = require_service!(Nats::start(&options).await);
    let sink = build(NatsConfig::new(&server.url()).with(|options| {
        options.cert_file = Some(client.pair.certificate.clone());
        options.key_file = Some(client.pair.key.clone());
        options.ca_file = Some(old.ca().to_owned());
    }))
    .await;
    let url = server.url();
    choose_crypto();
    let dial = async || {
        let options = async_nats::ConnectOptions::new()
            .require_tls(true)
            .add_root_certificates(old.ca().to_owned())
            .add_client_certificate(client.pair.certificate.clone(), client.pair.key.clone());
        jetstream::new(options.connect(&url).await.expect("the test's own client connects"))
    };
    dial().await.create_stream(plain("S", &["s"])).await.expect("a stream");
    let load = Load::start(&sink, "s");
    until_delivered(&sink, "s", DEADLINE).await;
    for (from, to) in [(new.ca(), old.ca()), (&new.server().certificate, &old.server().certificate)] {
        std::fs::copy(from, to).expect("replaced");
    }
    std::fs::copy(&new.server().key, &old.server().key).expect("replaced");
    client.replace(&later);
    server.kill9().await.expect("killed");
    server.start_again().await.expect("starts with the new certificate");
    load.more(3_000).await;
    let account = load.end().await;
    let mut stream = dial().await.get_stream("S").await.expect("the stream");
    let stored = stream.info().await.expect("info").state.messages as usize;
    assert!(stored > account.delivered.len(), "{stored} are in the stream");
}

/// Asked for TLS, nothing is sent without it.
#[tokio::test]
async fn f29_a_server_without_tls_is_refused_where_it_is_required() {
    let bed = require_service!(Bed::open().await);
    bed.stream("S", &["s"]).await;
    let certs = Certs::make().expect("certificates");
    let required = bed.config().with(|options| options.require_tls = true);
    let implied = bed.config().with(|options| options.ca_file = Some(certs.ca().to_owned()));
    let by_scheme = NatsConfig::new(&bed.server.url().replace("nats://", "tls://"));
    for config in [required, implied, by_scheme] {
        let verdict = publish_one(&build(config).await, loose("s")).await;
        assert_seen(&verdict, "retry", "nats.tls", Scope::Sink);
    }
    assert!(bed.stored("S").await.is_empty());
}
