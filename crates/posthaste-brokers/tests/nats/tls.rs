//! TLS: the right server gets the events, and every wrong one is refused by name (F29).

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair};
use std::path::{Path, PathBuf};

async fn start(server: &Pair) -> Result<Nats, ServiceError> {
    Nats::start(&NatsOptions::default().tls(server)).await
}

fn trusting(server: &Nats, ca: &Path) -> NatsConfig {
    NatsConfig { ca_file: Some(ca.to_owned()), ..NatsConfig::new(&server.url()) }
}

/// Connected means that the server answers: there is no stream, and that is what it says.
async fn assert_gets_in(config: NatsConfig) {
    let verdict = publish_one(&build(config).await, loose("nowhere")).await;
    assert_seen(&verdict, "retry", "nats.no_stream", Scope::Destination);
}

async fn assert_refused(config: NatsConfig, because: &str) {
    let verdict = publish_one(&build(config).await, loose("nowhere")).await;
    assert_seen(&verdict, "retry", "nats.tls", Scope::Sink);
    assert!(seen(&verdict).3.contains(because), "{verdict:?}");
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
    let elsewhere = Elsewhere::make();
    let server = require_service!(start(&elsewhere.pair).await);
    assert_refused(trusting(&server, &elsewhere.ca), "not valid for name").await;
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

/// Puts the files of `new` into the places of `old`, as a rotation does.
fn rotate(old: [&Path; 5], new: [&Path; 5]) {
    for (old, new) in old.into_iter().zip(new) {
        std::fs::copy(new, old).expect("a file is replaced");
    }
}

/// Authority, server and client are all replaced while events flow: the files are read at the next connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_rotated_under_load_and_nothing_is_lost() {
    let (old, new) = (Certs::make().expect("certificates"), Certs::make().expect("certificates"));
    let (client, later) = (old.client("shop").expect("a pair"), new.client("shop").expect("a pair"));
    let options = NatsOptions::default().mutual_tls(old.server(), old.ca());
    let mut server = require_service!(Nats::start(&options).await);
    let sink = build(NatsConfig {
        cert_file: Some(client.certificate.clone()),
        key_file: Some(client.key.clone()),
        ..trusting(&server, old.ca())
    })
    .await;
    let url = server.url();
    let dial = async || {
        let options = async_nats::ConnectOptions::new()
            .require_tls(true)
            .add_root_certificates(old.ca().to_owned())
            .add_client_certificate(client.certificate.clone(), client.key.clone());
        jetstream::new(options.connect(&url).await.expect("the test's own client connects"))
    };
    dial().await.create_stream(plain("S", &["s"])).await.expect("a stream");
    let load = {
        let sink = Arc::clone(&sink);
        tokio::spawn(async move {
            let mut delivered = Vec::new();
            for _ in 0..40 {
                let messages = (0..250).map(|n| keyed("s", &format!("key-{n}"))).collect();
                delivered.extend(super::outage::publish_until_delivered(&sink, messages).await);
            }
            delivered
        })
    };
    until_delivered(&sink, "s", DEADLINE).await;
    rotate(
        [old.ca(), &old.server().certificate, &old.server().key, &client.certificate, &client.key],
        [new.ca(), &new.server().certificate, &new.server().key, &later.certificate, &later.key],
    );
    server.kill9().await.expect("killed");
    server.start_again().await.expect("starts with the new certificate");
    let delivered = load.await.expect("the load ends");
    let mut stream = dial().await.get_stream("S").await.expect("the stream");
    let stored = stream.info().await.expect("info").state.messages;
    assert_eq!(delivered.len(), 10_000);
    assert!(stored > 10_000, "{stored} are in the stream");
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

/// A certificate of a proper authority for a name that is not the server's.
struct Elsewhere {
    ca: PathBuf,
    pair: Pair,
}

impl Elsewhere {
    fn make() -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-tls-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&dir).expect("a directory");
        let write = |name: &str, text: String| {
            std::fs::write(dir.join(name), text).expect("written");
            dir.join(name)
        };
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let (ca_key, key) =
            (rcgen::KeyPair::generate().expect("a key"), rcgen::KeyPair::generate().expect("a key"));
        let ca = write("ca.pem", authority.self_signed(&ca_key).expect("signed").pem());
        let issuer = rcgen::Issuer::new(authority, ca_key);
        let leaf = rcgen::CertificateParams::new(["elsewhere.example".to_owned()]).expect("parameters");
        let certificate = write("server.pem", leaf.signed_by(&key, &issuer).expect("signed").pem());
        Self { ca, pair: Pair { certificate, key: write("server.key", key.serialize_pem()) } }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        if let Some(dir) = self.ca.parent() {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}
