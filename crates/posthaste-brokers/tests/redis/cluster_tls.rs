//! A cluster whose servers speak TLS, with their clients and with each other (F29).
//!
//! The servers that a cluster names are strangers until their certificates are good: each is verified as
//! those of the configuration are.

use super::*;
use posthaste::sink::Level;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Pair, RedisCluster};
use std::path::Path;

/// Three streams, one on each of three servers.
const STREAMS: [&str; 3] = ["b", "c", "foo"];

/// Servers with these certificates. Each asks its clients for one too.
async fn start(certs: &Certs, servers: [&Pair; 3]) -> Result<RedisCluster, ServiceError> {
    let node = certs.client("node")?;
    let options = servers.map(|server| {
        RedisOptions::default()
            .mutual_tls(server, certs.ca())
            .tls_between_peers(&node, certs.ca())
            .setting("cluster-require-full-coverage no")
    });
    RedisCluster::start_each(&options).await
}

fn trusting(cluster: &RedisCluster, certs: &Certs, ca: &Path) -> RedisConfig {
    let client = certs.client("shop").expect("a certificate");
    RedisConfig {
        cluster: true,
        ..RedisConfig::new(&cluster.nodes[0].url()).with(|options| {
            options.ca_file = Some(ca.to_owned());
            options.cert_file = Some(client.certificate);
            options.key_file = Some(client.key);
            options.require_tls = true;
        })
    }
}

fn lengths(cluster: &RedisCluster) -> Vec<String> {
    let length = |(node, stream): (&Redis, &str)| node.cli(&["XLEN", stream]).expect("asked");
    cluster.nodes.iter().zip(STREAMS).map(length).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_every_server_of_a_cluster_is_reached_over_tls_and_the_wrong_authority_is_refused() {
    let certs = Certs::make().expect("certificates");
    let server = certs.server();
    let cluster = require_service!(start(&certs, [server; 3]).await);
    let sink = build(trusting(&cluster, &certs, certs.ca())).await;
    assert_delivered(&sink.publish(&STREAMS.map(|stream| keyed(stream, stream))).await);
    assert_eq!(lengths(&cluster), ["1", "1", "1"]);
    let findings = sink.examine(&STREAMS.map(str::to_owned)).await;
    assert_found(&findings, "transport", Level::Ok, "TLS");
    assert_found(&findings, "cluster", Level::Ok, "every slot");
    // Where a slot has moved to is said without a scheme: it is not asked for without TLS.
    cluster.nodes[2].cli(&["DEL", "foo"]).expect("deleted");
    cluster.move_slot(12_182, 0).expect("moved");
    assert_delivered(&sink.publish(&[keyed("foo", "k"), keyed("foo", "k")]).await);
    assert_eq!(cluster.nodes[0].cli(&["XLEN", "foo"]).expect("asked"), "2");

    let wrong = build(trusting(&cluster, &certs, certs.other_ca())).await;
    assert_no_trust(&wrong, "c", "redis.tls", &["UnknownIssuer"]).await;
    assert_only_unreachable(&wrong.examine(&[]).await, "UnknownIssuer");
    let system = trusting(&cluster, &certs, certs.ca()).with(|options| options.ca_file = None);
    assert_no_trust(&build(system).await, "c", "redis.tls", &["UnknownIssuer"]).await;
    let nameless = trusting(&cluster, &certs, certs.ca()).with(|options| {
        options.cert_file = None;
        options.key_file = None;
    });
    assert_no_trust(&build(nameless).await, "c", "redis.tls", &["alert"]).await;
    assert_eq!(lengths(&cluster)[1], "1", "nothing of it arrived");
}

/// A server that the cluster names, with a certificate for another name: its streams wait, and the others
/// flow (F30).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f29_a_server_that_the_cluster_names_is_verified_too() {
    let certs = Certs::make().expect("certificates");
    let (server, elsewhere) = (certs.server(), certs.elsewhere());
    let cluster = require_service!(start(&certs, [server, elsewhere, server]).await);
    let sink = build(trusting(&cluster, &certs, certs.ca())).await;
    let verdicts = sink.publish(&STREAMS.map(|stream| keyed(stream, stream))).await;
    assert_eq!([&verdicts[0], &verdicts[2]], [&Verdict::Delivered, &Verdict::Delivered], "{verdicts:?}");
    assert_seen(&verdicts[1], "retry", "redis.tls", Scope::Destination);
    assert!(seen(&verdicts[1]).3.contains("not valid for name"), "{verdicts:?}");
    assert_eq!(lengths(&cluster), ["1", "0", "1"]);
}
