//! Where the limiter's server is, and as whom we log in: rights, TLS, sentinels, and no cluster.

use super::*;
use posthaste_brokers::{LimiterConfig, Secret};
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, RedisCluster, RedisSentinel};

/// Waits for the connection and takes one event.
async fn take_one(config: &RedisConfig) -> LimitDecision {
    let limiter = limiter(config, DEADLINE);
    let _ = limiter.tried(DEADLINE).await;
    let decision = limiter.take(&anybody(), RATE, 1).await;
    limiter.close().await;
    decision
}

#[track_caller]
fn assert_lost(decision: &LimitDecision, words: &str) {
    let LimitDecision::Lost(why) = decision else { panic!("{decision:?}") };
    assert!(why.contains(words) && !why.contains(SECRET), "{why}");
}

/// The rights that the documentation names, and no others.
#[tokio::test]
async fn it_needs_few_rights() {
    let rights = "-@all +evalsha +eval +script|load +time +get +set ~ph:*";
    let user = format!("user gate on >{SECRET} {rights}");
    let server = require_service!(Redis::start(&RedisOptions::default().setting(&user)).await);
    let config = RedisConfig::new(&server.url()).with(|options| {
        options.user = Some("gate".to_owned());
        options.password = Some(Secret::new(SECRET));
    });
    assert!(passes(&take_one(&config).await));
    // Each of them is missed, and the words say as whom we came.
    for (lost, word) in [("-get", "script"), ("-set", "script"), ("-time", "script"), ("resetkeys", "key")] {
        assert_eq!(server.cli(&["ACL", "SETUSER", "gate", lost]).expect("asked"), "OK");
        let decision = take_one(&config).await;
        assert_lost(&decision, word);
        assert_lost(&decision, "user \"gate\"");
        server.cli(&["ACL", "SETUSER", "gate", "+get", "+set", "+time", "~ph:*"]).expect("asked");
    }
    // Without the right to load, or to run by a hash, the script goes whole.
    server.cli(&["ACL", "SETUSER", "gate", "-script|load"]).expect("asked");
    assert!(passes(&take_one(&config).await));
    server.cli(&["ACL", "SETUSER", "gate", "off"]).expect("asked");
    assert_lost(&take_one(&config).await, "user \"gate\"");
}

#[tokio::test]
async fn tls_and_a_private_authority() {
    let certs = Certs::make().expect("certificates");
    let server = require_service!(Redis::start(&RedisOptions::default().tls(certs.server())).await);
    let trusted =
        RedisConfig::new(&server.url()).with(|options| options.ca_file = Some(certs.ca().to_owned()));
    assert!(passes(&take_one(&trusted).await));
    assert_lost(&take_one(&RedisConfig::new(&server.url())).await, "TLS");
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused_by_that_word() {
    let cluster = require_service!(RedisCluster::start(3, &RedisOptions::default()).await);
    let node = &cluster.nodes[0];
    let decision = take_one(&RedisConfig::new(&node.url())).await;
    assert_lost(&decision, "a node of a cluster: name a single server, or sentinels");
    // Whoever may not ask for it learns it from the first key that is elsewhere.
    let user = format!(">{SECRET}");
    let rights = ["on", &user, "+@all", "-info", "~*"];
    node.cli(&[&["ACL", "SETUSER", "gate"], &rights[..]].concat()).expect("asked");
    let config = RedisConfig::new(&node.url()).with(|options| {
        options.user = Some("gate".to_owned());
        options.password = Some(Secret::new(SECRET));
    });
    let limiter = limiter(&config, DEADLINE);
    limiter.tried(DEADLINE).await.expect("let in");
    until(async || {
        let decision = limiter.take(&anybody(), RATE, 1).await;
        if !passes(&decision) {
            assert_lost(&decision, "a node of a cluster");
        }
        !passes(&decision)
    })
    .await;
}

/// The master is killed: the sentinel makes the replica the master, and it is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed() {
    let mut bed = require_service!(Bed::open().await);
    let replica =
        Redis::start(&RedisOptions::default().replica_of(bed.server.addr())).await.expect("a replica");
    let sentinel = RedisSentinel::start("main", bed.server.addr()).await.expect("a sentinel");
    assert!(sentinel.knows_a_replica().await);
    let config =
        RedisConfig { sentinel_master: Some("main".to_owned()), ..RedisConfig::new(&sentinel.url()) };
    let gateway = Gateway::new(&config, OnLoss::Local, TIMEOUT);
    gateway.until_shared().await;
    bed.server.kill9().await.expect("killed");
    until(async || {
        assert!(passes(&gateway.one().await), "it goes on in process");
        gateway.mode() == LimiterMode::Local
    })
    .await;
    until(async || {
        gateway.one().await;
        gateway.mode() == LimiterMode::Shared && replica.cli(&["DBSIZE"]).expect("asked") != "0"
    })
    .await;
}

/// As a gateway's configuration names it.
#[tokio::test]
async fn a_table_makes_a_limiter() {
    let bed = require_service!(Bed::open().await);
    let table = format!("url = {:?}", bed.server.url());
    let config: LimiterConfig = toml::from_str(&table).expect("valid");
    assert_eq!(config, LimiterConfig::new(&bed.server.url()));
    config.check_files().expect("valid");
    let limiter = config.build(DEADLINE, "gateway").expect("valid");
    until(async || passes(&limiter.take(&anybody(), RATE, 1).await)).await;
}
