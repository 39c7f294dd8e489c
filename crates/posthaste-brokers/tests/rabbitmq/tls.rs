//! TLS: the right server gets the events, and every wrong one is refused by name (F29).

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair, TlsListener};
use std::path::{Path, PathBuf};

/// The broker's alert, or our own words where it was lost.
const REFUSED: &str = "alert|refuses our certificate";

async fn listener(server: &Rabbitmq, pair: &Pair) -> TlsListener {
    server.tls_listener(pair, None).await.expect("a port")
}

fn trusting(listener: &TlsListener, ca: &Path) -> RabbitmqConfig {
    RabbitmqConfig { ca_file: Some(ca.to_owned()), ..RabbitmqConfig::new(&listener.url()) }
}

/// Connected means that the server answers: there is no such queue, and that is what it says.
async fn assert_gets_in(config: RabbitmqConfig) {
    let verdict = publish_one(&build(config).await, loose("nowhere")).await;
    assert_seen(&verdict, "retry", "rabbitmq.unroutable", Scope::Destination);
}

async fn assert_refused(config: RabbitmqConfig, because: &str) {
    let files: Vec<PathBuf> = [&config.ca_file, &config.cert_file].into_iter().flatten().cloned().collect();
    let verdict = publish_one(&build(config).await, loose("nowhere")).await;
    assert_seen(&verdict, "retry", "rabbitmq.tls", Scope::Sink);
    let words = seen(&verdict).3;
    assert!(because.split('|').any(|because| words.contains(because)), "{words}");
    assert!(files.iter().all(|file| words.contains(&*file.to_string_lossy())), "{words}");
}

#[tokio::test]
async fn f29_the_authority_decides() {
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let listener = listener(server, certs.server()).await;
    assert_gets_in(trusting(&listener, certs.ca())).await;
    assert_refused(trusting(&listener, certs.other_ca()), "UnknownIssuer").await;
    assert_refused(RabbitmqConfig::new(&listener.url()), "UnknownIssuer").await;
}

#[tokio::test]
async fn f29_an_expired_certificate_is_refused() {
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let listener = listener(server, certs.expired_server()).await;
    assert_refused(trusting(&listener, certs.ca()), "expired").await;
}

#[tokio::test]
async fn f29_a_certificate_for_another_name_is_refused() {
    let server = require_service!(shared().await);
    let elsewhere = Elsewhere::make();
    let listener = listener(server, &elsewhere.pair).await;
    assert_refused(trusting(&listener, &elsewhere.ca), "not valid for name").await;
}

#[tokio::test]
async fn a_server_may_ask_who_we_are() {
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let listener = server.tls_listener(certs.server(), Some(certs.ca())).await.expect("a port");
    let name = unique("shop");
    server.add_user(&name, "pw", [".*", ".*", ".*"]).await.expect("a user");
    let with = |pair: Pair| RabbitmqConfig {
        cert_file: Some(pair.certificate),
        key_file: Some(pair.key),
        ..trusting(&listener, certs.ca())
    };
    assert_gets_in(with(certs.client(&name).expect("a certificate"))).await;
    assert_refused(with(certs.stranger(&name).expect("a certificate")), REFUSED).await;
    assert_refused(trusting(&listener, certs.ca()), REFUSED).await;
}

/// Asked for TLS, nothing is sent without it; and the other way round, the words help.
#[tokio::test]
async fn f29_tls_and_no_tls_do_not_understand_each_other() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let tls_to_plain = RabbitmqConfig::new(&bed.url.replace("amqp://", "amqps://"));
    let verdict = publish_one(&build(tls_to_plain).await, loose("nowhere")).await;
    assert_seen(&verdict, "retry", "rabbitmq.tls", Scope::Sink);
    let listener = listener(server, certs.server()).await;
    let plain_to_tls = RabbitmqConfig::new(&listener.url().replace("amqps://", "amqp://"));
    let verdict = publish_one(&build(plain_to_tls).await, loose("nowhere")).await;
    assert_seen(&verdict, "retry", "rabbitmq.unreachable", Scope::Sink);
}

/// Large and small messages, and the broker's answers, through TLS.
#[tokio::test]
async fn what_is_encrypted_arrives_as_it_was() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let (queue, listener) = (bed.queue().await, listener(server, certs.server()).await);
    let sink = build(trusting(&listener, certs.ca())).await;
    let messages: Vec<_> =
        (0..300).map(|n| sized(&queue, if n == 150 { 3_000_000 } else { n * 10 })).collect();
    let verdicts = sink.publish(&messages).await;
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Delivered), "{verdicts:?}");
    let mut sizes: Vec<_> =
        bed.take(&queue).await.iter().map(|message| message.delivery.data.len()).collect();
    let mut sent: Vec<_> = messages.iter().map(|m| m.payload.as_ref().map_or(0, bytes::Bytes::len)).collect();
    sizes.sort_unstable();
    sent.sort_unstable();
    assert_eq!(sizes, sent);
}

/// Server and client get new certificates from a new authority while events flow; connections are closed as an
/// operator would do it. Nothing is lost, and the new files are used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_rotated_under_load() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let (old, new) = (Certs::make().expect("certificates"), Certs::make().expect("certificates"));
    let files = TestDir::make();
    let (queue, name) = (bed.queue().await, unique("shop"));
    server.add_user(&name, "pw", [".*", ".*", ".*"]).await.expect("a user");
    let listener = server.tls_listener(old.server(), None).await.expect("a port");
    let put = |certs: &Certs| {
        let pair = certs.client(&name).expect("a certificate");
        for (from, to) in [(certs.ca(), "ca"), (&pair.certificate, "cert"), (&pair.key, "key")] {
            // Whole or not at all, as a careful operator does it.
            std::fs::copy(from, files.path("next")).expect("copied");
            std::fs::rename(files.path("next"), files.path(to)).expect("renamed");
        }
    };
    put(&old);
    let sink = build(RabbitmqConfig {
        user: Some(name.clone()),
        password: Some(posthaste_brokers::Secret::new("pw")),
        ca_file: Some(files.path("ca")),
        cert_file: Some(files.path("cert")),
        key_file: Some(files.path("key")),
        ..RabbitmqConfig::new(&listener.url())
    })
    .await;
    until_delivered(&sink, &queue, DEADLINE).await;
    let load = tokio::spawn({
        let (sink, queue) = (Arc::clone(&sink), queue.clone());
        async move {
            let mut delivered = Vec::new();
            for _ in 0..40 {
                let messages: Vec<_> = (0..50).map(|n| keyed(&queue, &n.to_string())).collect();
                let verdicts = sink.publish(&messages).await;
                let arrived =
                    messages.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Delivered);
                delivered.extend(arrived.map(|(message, _)| message.id()));
            }
            delivered
        }
    });
    bed.until_holds(&queue, 200).await;
    server.use_certificate(&listener, new.server()).await.expect("a new certificate");
    put(&new);
    let close = format!("ok = rabbit_networking:close_all_user_connections(<<{name:?}>>, <<\"rotated\">>)");
    server.eval(&close).await.expect("closed");
    let delivered = load.await.expect("the load ends");
    until_delivered(&sink, &queue, Duration::from_secs(5)).await;
    let stored = bed.take_ids(&queue).await;
    assert!(delivered.len() >= 200 && delivered.iter().all(|id| stored.contains(id)));
}

/// A directory that goes with the value.
struct TestDir(PathBuf);

impl TestDir {
    fn make() -> Self {
        let dir = std::env::temp_dir().join(format!("posthaste-tls-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&dir).expect("a directory");
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A certificate of a proper authority for a name that is not the server's.
struct Elsewhere {
    _dir: TestDir,
    ca: PathBuf,
    pair: Pair,
}

impl Elsewhere {
    fn make() -> Self {
        let dir = TestDir::make();
        let write = |name: &str, text: String| {
            std::fs::write(dir.path(name), text).expect("written");
            dir.path(name)
        };
        let mut authority = rcgen::CertificateParams::default();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let (ca_key, key) =
            (rcgen::KeyPair::generate().expect("a key"), rcgen::KeyPair::generate().expect("a key"));
        let ca = write("ca.pem", authority.self_signed(&ca_key).expect("signed").pem());
        let issuer = rcgen::Issuer::new(authority, ca_key);
        let leaf = rcgen::CertificateParams::new(["elsewhere.example".to_owned()]).expect("parameters");
        let certificate = write("server.pem", leaf.signed_by(&key, &issuer).expect("signed").pem());
        let pair = Pair { certificate, key: write("server.key", key.serialize_pem()) };
        Self { _dir: dir, ca, pair }
    }
}
