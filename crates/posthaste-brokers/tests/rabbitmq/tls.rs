//! TLS: the right server gets the events, and every wrong one is refused by name (F29).

use super::*;
use crate::ground::tls::{Gate, tls_suite};
use posthaste_brokers::Secret;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair, TlsListener};
use std::path::Path;

impl Gate for TlsListener {
    const REFUSED: &str = "rabbitmq.tls";
    const PLACE: (&str, Option<&str>) = ("nowhere", Some("rabbitmq.unroutable"));

    async fn open(server: &Pair, client_ca: Option<&Path>) -> Result<Self, ServiceError> {
        shared().await?.tls_listener(server, client_ca).await
    }

    fn way(&self, ca: Option<&Path>, pair: Option<&Pair>) -> SinkConfig {
        SinkConfig::Rabbitmq(Box::new(RabbitmqConfig::new(&self.url()).with(|options| {
            // With a user, the certificate is for TLS alone.
            options.user = Some("guest".to_owned());
            options.password = Some(Secret::new("guest"));
            options.ca_file = ca.map(Path::to_owned);
            options.cert_file = pair.map(|pair| pair.certificate.clone());
            options.key_file = pair.map(|pair| pair.key.clone());
        })))
    }
}

tls_suite!(TlsListener);

/// The words name the files that were used.
#[tokio::test]
async fn a_refusal_names_our_files() {
    let server = require_service!(shared().await);
    let certs = Certs::make().expect("certificates");
    let listener = server.tls_listener(certs.server(), Some(certs.ca())).await.expect("a port");
    let stranger = certs.stranger("shop").expect("a certificate");
    for (ca, pair) in [(certs.other_ca(), None), (certs.ca(), Some(&stranger))] {
        let sink = listener.way(Some(ca), pair).build("test").await.expect("a valid configuration");
        let words = until_failed(&sink, "nowhere", "rabbitmq.tls").await;
        let file = pair.map_or(ca, |pair| &pair.certificate);
        assert!(words.contains(&file.display().to_string()), "{words}");
    }
}

async fn listener(server: &Rabbitmq, pair: &Pair) -> TlsListener {
    server.tls_listener(pair, None).await.expect("a port")
}

fn trusting(listener: &TlsListener, ca: &Path) -> RabbitmqConfig {
    RabbitmqConfig::new(&listener.url()).with(|options| options.ca_file = Some(ca.to_owned()))
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

/// Server and client get new certificates from a new authority while events flow; connections are closed as
/// an operator would do it. Nothing is lost, and the new files are used.
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
    let sink = build(RabbitmqConfig::new(&listener.url()).with(|options| {
        options.user = Some(name.clone());
        options.password = Some(Secret::new("pw"));
        options.ca_file = ca.path();
        options.cert_file = Some(client.pair.certificate.clone());
        options.key_file = Some(client.pair.key.clone());
    }))
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
