//! TLS: the right server gets the events, and every wrong one is refused by name (F29).

use super::*;
use crate::ground::tls::{Gate, ReadGate, source_tls_suite, tls_suite};
use posthaste::consumer::Order;
use posthaste::source::Source;
use posthaste::source::leased::PlainLog;
use posthaste_brokers::GroupMember;
use posthaste_brokers::redis::{RedisLog, RedisQueue};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair, Proxy};
use std::path::Path;

impl Gate for Redis {
    const REFUSED: &str = "redis.tls";
    const PLACE: (&str, Option<&str>) = ("s", None);

    async fn open(server: &Pair, client_ca: Option<&Path>) -> Result<Self, ServiceError> {
        let options = RedisOptions::default();
        let options = client_ca.map_or(options.clone().tls(server), |ca| options.mutual_tls(server, ca));
        Redis::start(&options).await
    }

    fn way(&self, ca: Option<&Path>, pair: Option<&Pair>) -> SinkConfig {
        SinkConfig::Redis(Box::new(RedisConfig::new(&self.url()).with(|options| {
            options.ca_file = ca.map(Path::to_owned);
            options.cert_file = pair.map(|pair| pair.certificate.clone());
            options.key_file = pair.map(|pair| pair.key.clone());
        })))
    }
}

tls_suite!(Redis);

impl ReadGate for Redis {
    fn readers(&self, ca: &Path) -> (Arc<dyn PlainLog>, Arc<dyn Source>) {
        let config = RedisConfig::new(&self.url()).with(|options| options.ca_file = Some(ca.to_owned()));
        let plan = GroupMember { order: Order::None, ..GroupMember::new("billing", ["NOWHERE"]) };
        let queue = RedisQueue::start(&config, &plan).expect("valid");
        (Arc::new(RedisLog::new(&config).expect("valid")), Arc::new(queue))
    }
}

source_tls_suite!(Redis);

/// Asked for TLS, nothing is sent without it; and a server that wants it is not taken for one that is down.
#[tokio::test]
async fn f29_a_server_without_tls_is_refused_where_it_is_required() {
    let bed = require_service!(Bed::open().await);
    let url = bed.server.url().replace("redis://", "rediss://");
    let sink = build(RedisConfig::new(&url)).await;
    // It does not answer, so this takes as long as the handshake may.
    until(async || seen(&publish_one(&sink, loose("s")).await).1 == "redis.tls").await;
    assert_eq!(bed.length("s").await, 0);
}

/// The files are read at each connection: a new certificate is used without a restart, and nothing is lost
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_rotated_under_load_is_used_at_the_next_connection() {
    let certs = Certs::make().expect("certificates");
    let options = RedisOptions::default().mutual_tls(certs.server(), certs.ca());
    let server = require_service!(Redis::start(&options).await);
    let pair = TestPair::copy(&certs.client("shop").expect("a certificate"));
    let (proxy, url) = Proxy::start_before(&server.url()).await.expect("a proxy");
    let config = RedisConfig::new(&url).with(|options| {
        options.ca_file = Some(certs.ca().to_owned());
        options.cert_file = Some(pair.pair.certificate.clone());
        options.key_file = Some(pair.pair.key.clone());
    });
    let sink = build(config).await;
    let load = Load::start(&sink, "s");
    until_delivered(&sink, "s", DEADLINE).await;
    // One that the server refuses shows that the files are read again, one that it takes that all goes on.
    pair.replace(&certs.stranger("shop").expect("a certificate"));
    proxy.cut().await;
    until_failed(&sink, "s", "redis.tls").await;
    pair.replace(&certs.client("shop2").expect("a certificate"));
    until_delivered(&sink, "s", BACK_WITHIN).await;
    load.more(3_000).await;
    let (account, reader) = (load.end().await, reader(&certs, &server, &pair.pair).await);
    account.assert_all_there_in_order(&copies(&stored(&reader, "s").await));
}

/// Another client, with TLS.
async fn reader(certs: &Certs, server: &Redis, pair: &Pair) -> MultiplexedConnection {
    choose_crypto();
    let read = |path: &Path| std::fs::read(path).expect("a file");
    let certificates = ::redis::TlsCertificates {
        client_tls: Some(::redis::ClientTlsConfig {
            client_cert: read(&pair.certificate),
            client_key: read(&pair.key),
        }),
        root_cert: Some(read(certs.ca())),
    };
    let client = ::redis::Client::build_with_tls(server.url(), certificates).expect("certificates");
    let options = ::redis::AsyncConnectionConfig::new().set_response_timeout(Some(DEADLINE));
    client.get_multiplexed_async_connection_with_config(&options).await.expect("connected")
}
