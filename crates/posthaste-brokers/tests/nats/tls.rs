//! TLS: the right server gets the events, and every wrong one is refused by name (F29).

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair};
use std::path::Path;

async fn start(server: &Pair) -> Result<Nats, ServiceError> {
    Nats::start(&NatsOptions::default().tls(server)).await
}

fn trusting(server: &Nats, ca: &Path) -> NatsConfig {
    NatsConfig { ca_file: Some(ca.to_owned()), ..NatsConfig::new(&server.url()) }
}

async fn assert_refused(config: NatsConfig, because: &str) {
    assert_no_trust(&build(config).await, "nowhere", "nats.tls", &[because]).await;
}

#[tokio::test]
async fn f29_the_authority_decides() {
    let certs = Certs::make().expect("certificates");
    let server = require_service!(start(certs.server()).await);
    assert_gets_in(trusting(&server, certs.ca())).await;
    // The scheme does not matter: a server that requires TLS gets it.
    let plain_url = server.url().replace("tls://", "nats://");
    assert_gets_in(NatsConfig { ca_file: Some(certs.ca().to_owned()), ..NatsConfig::new(&plain_url) }).await;
    assert_refused(trusting(&server, certs.other_ca()), "UnknownIssuer").await;
    assert_refused(NatsConfig::new(&server.url()), "UnknownIssuer").await;
}

#[tokio::test]
async fn f29_an_expired_certificate_is_refused() {
    let certs = Certs::make().expect("certificates");
    let server = require_service!(start(certs.expired_server()).await);
    assert_refused(trusting(&server, certs.ca()), "expired").await;
}

#[tokio::test]
async fn f29_a_certificate_for_another_name_is_refused() {
    let certs = Certs::make().expect("certificates");
    let server = require_service!(start(certs.elsewhere()).await);
    assert_refused(trusting(&server, certs.ca()), "not valid for name").await;
}

#[tokio::test]
async fn a_server_may_ask_who_we_are() {
    let certs = Certs::make().expect("certificates");
    let options = NatsOptions::default().mutual_tls(certs.server(), certs.ca());
    let server = require_service!(Nats::start(&options).await);
    let with = |pair: &Pair| NatsConfig {
        cert_file: Some(pair.certificate.clone()),
        key_file: Some(pair.key.clone()),
        ..trusting(&server, certs.ca())
    };
    assert_gets_in(with(&certs.client("shop").expect("a certificate"))).await;
    assert_refused(with(&certs.stranger("shop").expect("a certificate")), "alert").await;
    assert_refused(trusting(&server, certs.ca()), "alert").await;
}

/// Authority, server and client are all replaced while events flow: the files are read at the next connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_rotated_under_load_and_nothing_is_lost() {
    let (old, new) = (Certs::make().expect("certificates"), Certs::make().expect("certificates"));
    let (client, later) = (old.client("shop").expect("a pair"), new.client("shop").expect("a pair"));
    let client = TestPair::copy(&client);
    let options = NatsOptions::default().mutual_tls(old.server(), old.ca());
    let mut server = require_service!(Nats::start(&options).await);
    let sink = build(NatsConfig {
        cert_file: Some(client.pair.certificate.clone()),
        key_file: Some(client.pair.key.clone()),
        ..trusting(&server, old.ca())
    })
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
    let required = NatsConfig { require_tls: true, ..bed.config() };
    let implied = NatsConfig { ca_file: Some(certs.ca().to_owned()), ..bed.config() };
    let by_scheme = NatsConfig::new(&bed.server.url().replace("nats://", "tls://"));
    for config in [required, implied, by_scheme] {
        let verdict = publish_one(&build(config).await, loose("s")).await;
        assert_seen(&verdict, "retry", "nats.tls", Scope::Sink);
    }
    assert!(bed.stored("S").await.is_empty());
}
