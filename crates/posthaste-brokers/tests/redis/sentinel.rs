//! A master, a replica, and a sentinel that watches them.

use super::*;
use crate::ground::load::assert_in_order;
use posthaste::sink::Level;
use posthaste_testkit::require_service;
use posthaste_testkit::services::RedisSentinel;

fn config(sentinel: &RedisSentinel) -> RedisConfig {
    RedisConfig { sentinel_master: Some("main".to_owned()), ..RedisConfig::new(&sentinel.url()) }
}

/// The master is killed under load: the sentinel makes the replica the master, and we find it. What the old
/// master had acknowledged and not passed on is lost with it, so only what came later can be asked for; its
/// order is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed() {
    let mut bed = require_service!(Bed::open().await);
    let options = RedisOptions::default().replica_of(bed.server.addr());
    let replica = Redis::start(&options).await.expect("a replica");
    let sentinel = RedisSentinel::start("main", bed.server.addr()).await.expect("a sentinel");
    assert!(sentinel.knows_a_replica().await);
    let sink = build(config(&sentinel)).await;
    until_delivered(&sink, "s", DEADLINE).await;
    let findings = sink.examine(&["s".to_owned()]).await;
    assert_found(&findings, "reachable", Level::Ok, &bed.server.addr().to_string());
    assert_found(&findings, "durability", Level::Warn, "failover");
    until(async || replica.cli(&["INFO", "replication"]).expect("info").contains("master_link_status:up"))
        .await;
    let load = Load::start(&sink, "s");
    load.more(1_000).await;
    bed.server.kill9().await.expect("killed");
    load.more(10_000).await;
    let account = load.end().await;
    let client = client(&replica.url()).await;
    let entries = stored(&client, "s").await;
    let after = entries.iter().filter(|entry| account.delivered.contains(&entry.text("id").expect("an id")));
    let (all, after) = (account.delivered.len(), after.count());
    assert!(after > 9_000, "{after} of {all} are at the new master");
    assert_in_order(&copies(&entries));
}

#[tokio::test]
async fn who_is_no_sentinel_or_does_not_know_the_master_is_named() {
    let bed = require_service!(Bed::open().await);
    let sentinel = RedisSentinel::start("main", bed.server.addr()).await.expect("a sentinel");
    let other = RedisConfig { sentinel_master: Some("other".to_owned()), ..config(&sentinel) };
    let verdict = publish_one(&build(other).await, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.sentinel", Scope::Sink);
    assert!(seen(&verdict).3.contains("\"other\""), "{verdict:?}");
    let server = RedisConfig { sentinel_master: Some("main".to_owned()), ..bed.config() };
    let verdict = publish_one(&build(server).await, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.sentinel", Scope::Sink);
    // The second of the list answers where the first is down.
    let urls = format!("redis://127.0.0.1:1, {}", sentinel.url());
    let sink = build(RedisConfig { url: posthaste_brokers::Urls::new(&urls), ..config(&sentinel) }).await;
    until_delivered(&sink, "s", DEADLINE).await;
}

/// A sentinel that is cut off from the others names a master that is dead, or one that has become a replica.
#[tokio::test]
async fn a_sentinel_that_names_a_useless_server_does_not_hide_the_others() {
    let bed = require_service!(Bed::open().await);
    let mut dead = Redis::start(&RedisOptions::default()).await.expect("a server");
    let dead_master = RedisSentinel::start("main", dead.addr()).await.expect("a sentinel");
    dead.stop().await.expect("stopped");
    let right = RedisSentinel::start("main", bed.server.addr()).await.expect("a sentinel");
    let urls = format!("{}, {}", dead_master.url(), right.url());
    let sink = build(RedisConfig { url: posthaste_brokers::Urls::new(&urls), ..config(&right) }).await;
    until_delivered(&sink, "s", DEADLINE).await;
}

/// Sentinels have users and passwords of their own.
#[tokio::test]
async fn a_sentinel_may_ask_who_we_are() {
    let options = RedisOptions::default().setting("requirepass servers-pw");
    let server = require_service!(Redis::start(&options).await);
    let settings = "requirepass sentinels-pw\nsentinel auth-pass main servers-pw";
    let sentinel = RedisSentinel::start_with("main", server.addr(), settings).await.expect("a sentinel");
    let secret = |text: &str| Some(posthaste_brokers::Secret::new(text));
    let at_server = config(&sentinel).with(|options| options.password = secret("servers-pw"));
    let right = RedisConfig { sentinel_password: secret("sentinels-pw"), ..at_server.clone() };
    assert_eq!(publish_one(&build(right).await, loose("s")).await, Verdict::Delivered);
    let wrong = RedisConfig { sentinel_password: secret("servers-pw"), ..at_server.clone() };
    for config in [wrong, at_server] {
        let verdict = publish_one(&build(config).await, loose("s")).await;
        assert_seen(&verdict, "retry", "redis.auth", Scope::Sink);
        let words = seen(&verdict).3;
        assert!(words.contains(&sentinel.url()) && !words.contains("-pw"), "{words}");
    }
}
