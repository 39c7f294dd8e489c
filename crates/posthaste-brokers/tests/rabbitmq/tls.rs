//! TLS: the right server gets the events, and every wrong one is refused by name (F29).

use super::*;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair, TlsListener};
use std::path::{Path, PathBuf};

async fn listener(server: &Rabbitmq, pair: &Pair) -> TlsListener {
    server.tls_listener(pair, None).await.expect("a port")
}

fn trusting(listener: &TlsListener, ca: &Path) -> RabbitmqConfig {
    RabbitmqConfig { ca_file: Some(ca.to_owned()), ..RabbitmqConfig::new(&listener.url()) }
}

/// The broker's alert, or our own words where it was lost.
const REFUSED: [&str; 2] = ["alert", "refuses our certificate"];

/// In words that name our files.
async fn assert_refused(config: RabbitmqConfig, because: &[&str]) {
    let files: Vec<PathBuf> = [&config.ca_file, &config.cert_file].into_iter().flatten().cloned().collect();
    let sink = build(config).await;
    assert_no_trust(&sink, "nowhere", "rabbitmq.tls", because).await;
    let words = until_failed(&sink, "nowhere", "rabbitmq.tls").await;
    assert!(files.iter().all(|file| words.contains(&*file.to_string_lossy())), "{words}");
}

#[tokio::test]
async fn f29_the_authority_decides() {
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let listener = listener(server, certs.server()).await;
    assert_gets_in(trusting(&listener, certs.ca())).await;
    assert_refused(trusting(&listener, certs.other_ca()), &["UnknownIssuer"]).await;
    assert_refused(RabbitmqConfig::new(&listener.url()), &["UnknownIssuer"]).await;
}

#[tokio::test]
async fn f29_an_expired_certificate_is_refused() {
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let listener = listener(server, certs.expired_server()).await;
    assert_refused(trusting(&listener, certs.ca()), &["expired"]).await;
}

#[tokio::test]
async fn f29_a_certificate_for_another_name_is_refused() {
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let listener = listener(server, certs.elsewhere()).await;
    assert_refused(trusting(&listener, certs.ca()), &["not valid for name"]).await;
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
    assert_refused(with(certs.stranger(&name).expect("a certificate")), &REFUSED).await;
    assert_refused(trusting(&listener, certs.ca()), &REFUSED).await;
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
    let (queue, name) = (bed.queue().await, unique("shop"));
    server.add_user(&name, "pw", [".*", ".*", ".*"]).await.expect("a user");
    let listener = server.tls_listener(old.server(), None).await.expect("a port");
    let ca = TestFile::copy(old.ca());
    let client = TestPair::copy(&old.client(&name).expect("a certificate"));
    let sink = build(RabbitmqConfig {
        user: Some(name.clone()),
        password: Some(posthaste_brokers::Secret::new("pw")),
        ca_file: ca.path(),
        cert_file: Some(client.pair.certificate.clone()),
        key_file: Some(client.pair.key.clone()),
        ..RabbitmqConfig::new(&listener.url())
    })
    .await;
    let load = Load::start(&sink, &queue);
    load.more(500).await;
    server.use_certificate(&listener, new.server()).await.expect("a new certificate");
    ca.replace(&std::fs::read_to_string(new.ca()).expect("PEM"));
    client.replace(&new.client(&name).expect("a certificate"));
    let close = format!("ok = rabbit_networking:close_all_user_connections(<<{name:?}>>, <<\"rotated\">>)");
    server.eval(&close).await.expect("closed");
    until_delivered(&sink, &queue, BACK_WITHIN).await;
    load.more(500).await;
    load.end().await.assert_all_there_in_order(&bed.take_copies(&queue).await);
}
