//! A cluster of three servers.

use super::*;
use posthaste::sink::Level;
use posthaste_testkit::require_service;
use posthaste_testkit::services::RedisCluster;

/// `foo` is in slot 12,182: the third node's.
const FOO: (&str, u16) = ("foo", 12_182);
/// In slot 5,061.
const FIRST_NODES: &str = "bar";

async fn start() -> Result<RedisCluster, ServiceError> {
    RedisCluster::start(3, &RedisOptions::default().setting("cluster-require-full-coverage no")).await
}

/// One of the nodes is enough to find the others.
fn config(cluster: &RedisCluster) -> RedisConfig {
    RedisConfig { cluster: true, ..RedisConfig::new(&cluster.nodes[0].url()) }
}

async fn length(node: &Redis, stream: &str) -> usize {
    node.cli(&["XLEN", stream]).expect("asked").parse().unwrap_or(0)
}

#[tokio::test]
async fn events_go_to_the_node_that_has_the_slot() {
    let cluster = require_service!(start().await);
    let sink = build(config(&cluster)).await;
    let streams: Vec<String> = (0..30).map(|n| format!("s{n}")).collect();
    let messages: Vec<_> =
        streams.iter().flat_map(|stream| [keyed(stream, stream), keyed(stream, stream)]).collect();
    assert_eq!(sink.publish(&messages).await, vec![Verdict::Delivered; 60]);
    let mut used = 0;
    for node in &cluster.nodes {
        let keys = node.cli(&["DBSIZE"]).expect("asked").parse::<usize>().expect("a number");
        used += usize::from(keys > 0);
    }
    assert_eq!(used, 3, "all nodes have some");
    let findings = sink.examine(&streams).await;
    assert_found(&findings, "cluster", Level::Ok, "every slot");
    assert_found(&findings, "durability", Level::Warn, "failover");
    assert!(findings.iter().all(|finding| finding.level != Level::Fail), "{findings:?}");
    // Several URLs say the same as `cluster = true`.
    let urls: Vec<_> = cluster.nodes.iter().map(Redis::url).collect();
    let sink = build(RedisConfig::new(&urls.join(","))).await;
    assert_eq!(publish_one(&sink, loose(FOO.0)).await, Verdict::Delivered);
}

/// A slot without data moves while we publish: the old owner says so, and we follow.
#[tokio::test]
async fn f41_a_moved_slot_is_followed() {
    let cluster = require_service!(start().await);
    let sink = build(config(&cluster)).await;
    until_delivered(&sink, FOO.0, DEADLINE).await;
    cluster.nodes[2].cli(&["DEL", FOO.0]).expect("deleted");
    cluster.move_slot(FOO.1, 0).expect("moved");
    let messages = [keyed(FOO.0, "a"), keyed(FOO.0, "a"), loose(FOO.0), loose("other")];
    assert_eq!(sink.publish(&messages).await, vec![Verdict::Delivered; 4]);
    assert_eq!(length(&cluster.nodes[0], FOO.0).await, 3);
    let ids = cluster.nodes[0].cli(&["XRANGE", FOO.0, "-", "+"]).expect("asked");
    let place = |index: usize| ids.find(&messages[index].id()).expect("it is there");
    assert!(place(0) < place(1), "the run keeps its order");
}

/// Many requests are with the old owner when it says so: each of them is followed, and none of them counts as
/// a move of its own.
#[tokio::test]
async fn f41_a_moved_slot_is_followed_by_all_that_was_under_way() {
    let cluster = require_service!(start().await);
    let sink = build(config(&cluster)).await;
    until_delivered(&sink, FOO.0, DEADLINE).await;
    // The new owner is known already, so it is found before the last of them has come back.
    until_delivered(&sink, FIRST_NODES, DEADLINE).await;
    cluster.nodes[2].cli(&["DEL", FOO.0]).expect("deleted");
    cluster.move_slot(FOO.1, 0).expect("moved");
    let key = |n: usize| format!("k{}", n % 40);
    let message = |n: usize| if n.is_multiple_of(2) { loose(FOO.0) } else { keyed(FOO.0, &key(n)) };
    let messages: Vec<_> = (0..3_000).map(message).collect();
    assert_delivered(&sink.publish(&messages).await);
    let client = client(&cluster.nodes[0].url()).await;
    let entries = stored(&client, FOO.0).await;
    assert_eq!(entries.len(), 3_000, "nothing is there twice");
    for key in (0..40).map(|n| Some(key(n))) {
        let sent = messages.iter().filter(|message| message.order_key() == key.as_deref());
        let there = entries.iter().filter(|entry| entry.text("key") == key);
        let there: Vec<_> = there.map(|entry| entry.text("id").expect("an id")).collect();
        assert_eq!(there, sent.map(Message::id).collect::<Vec<_>>(), "{key:?} keeps its order");
    }
}

/// A node that was taken out of the cluster answers, and knows of no slots. The other nodes of the list are
/// asked.
#[tokio::test]
async fn a_node_that_has_left_the_cluster_does_not_hide_the_others() {
    let cluster = require_service!(start().await);
    let left = require_service!(RedisCluster::lone(&RedisOptions::default()).await);
    let sink = build(RedisConfig::new(&format!("{},{}", left.url(), cluster.nodes[0].url()))).await;
    until_delivered(&sink, FOO.0, DEADLINE).await;
    // Alone, it is named.
    let sink = build(RedisConfig { cluster: true, ..RedisConfig::new(&left.url()) }).await;
    let verdict = publish_one(&sink, loose(FOO.0)).await;
    assert_seen(&verdict, "retry", "redis.cluster_down", Scope::Sink);
    assert!(seen(&verdict).3.contains(&left.url()), "{verdict:?}");
}

/// Who does not know that it is a cluster is told.
#[tokio::test]
async fn f41_a_node_of_a_cluster_that_is_taken_for_a_server_says_so() {
    let cluster = require_service!(start().await);
    let sink = build(RedisConfig::new(&cluster.nodes[0].url())).await;
    let verdict = publish_one(&sink, loose(FOO.0)).await;
    assert_seen(&verdict, "retry", "redis.moved", Scope::Destination);
    assert!(seen(&verdict).3.contains("cluster = true"), "{verdict:?}");
}

#[tokio::test]
async fn a_slot_that_is_being_moved_or_served_by_nobody_is_an_outage_of_its_own() {
    let cluster = require_service!(start().await);
    let sink = build(config(&cluster)).await;
    until_delivered(&sink, "other", DEADLINE).await;
    let slot = FOO.1.to_string();
    let target = cluster.nodes[0].cli(&["CLUSTER", "MYID"]).expect("asked");
    cluster.nodes[2].cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).expect("migrating");
    let verdicts = sink.publish(&[loose(FOO.0), loose("other")]).await;
    assert_seen(&verdicts[0], "retry", "redis.migrating", Scope::Destination);
    assert_eq!(verdicts[1], Verdict::Delivered);
    cluster.nodes[2].cli(&["CLUSTER", "SETSLOT", &slot, "STABLE"]).expect("stable");
    until_delivered(&sink, FOO.0, DEADLINE).await;
    for node in &cluster.nodes {
        node.cli(&["CLUSTER", "DELSLOTS", &slot]).expect("deleted");
    }
    let verdicts = sink.publish(&[loose(FOO.0), loose("other")]).await;
    assert_seen(&verdicts[0], "retry", "redis.cluster_down", Scope::Destination);
    assert_eq!(verdicts[1], Verdict::Delivered);
}

/// F30: one node is dead, and the streams of the others do not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f30_a_dead_node_costs_the_others_nothing() {
    let mut cluster = require_service!(start().await);
    let sink = build(config(&cluster)).await;
    let streams: Vec<String> = (0..12).map(|n| format!("s{n}")).collect();
    let messages = || streams.iter().map(|stream| keyed(stream, stream)).collect::<Vec<_>>();
    assert_eq!(sink.publish(&messages()).await, vec![Verdict::Delivered; 12]);
    cluster.nodes[1].kill9().await.expect("killed");
    let verdicts = sink.publish(&messages()).await;
    let failed = verdicts.iter().filter(|verdict| **verdict != Verdict::Delivered);
    for verdict in failed.clone() {
        assert_eq!(seen(verdict).2, Scope::Destination, "{verdict:?}");
    }
    assert!((1..12).contains(&failed.count()), "{verdicts:?}");
    cluster.nodes[1].start_again().await.expect("started again");
    assert_eq!(publish_until_delivered(&sink, messages()).await.len(), 12);
}

/// A call waits about a second for a server that does not come, and what is for the others has long arrived
/// by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f30_a_node_that_is_looked_for_delays_nobody_elses_streams() {
    let mut cluster = require_service!(start().await);
    let slot = |name: &String| cluster.nodes[0].cli(&["CLUSTER", "KEYSLOT", name]).expect("asked").parse();
    let of_second = |name: &String| slot(name).is_ok_and(|slot: u16| (6_000..10_000).contains(&slot));
    let dead = (0..).map(|n| format!("s{n}")).find(of_second).expect("a stream of the second node");
    let sink = build(config(&cluster)).await;
    until_delivered(&sink, &dead, DEADLINE).await;
    until_delivered(&sink, FOO.0, DEADLINE).await;
    cluster.nodes[1].kill9().await.expect("killed");
    let client = client(&cluster.nodes[2].url()).await;
    until(async || {
        let verdicts = sink.publish(&[loose(&dead), loose(FOO.0)]).await;
        let returned = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time");
        assert_eq!(seen(&verdicts[0]).2, Scope::Destination, "{verdicts:?}");
        assert_eq!(verdicts[1], Verdict::Delivered);
        let newest = ::redis::cmd("XREVRANGE").arg(FOO.0).arg("+").arg("-").arg("COUNT").arg(1).to_owned();
        let newest: Vec<(String, Vec<String>)> = newest.query_async(&mut client.clone()).await.expect("read");
        let arrived = newest[0].0.split('-').next().and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
        arrived.expect("an entry's id") + Duration::from_millis(300) < returned
    })
    .await;
}

#[tokio::test]
async fn a_cluster_that_is_down_is_an_outage_and_closing_ends_everything() {
    let mut cluster = require_service!(start().await);
    for node in &mut cluster.nodes {
        node.stop().await.expect("stopped");
    }
    let before = tasks();
    let sink = build(config(&cluster)).await;
    let verdict = publish_one(&sink, loose("s")).await;
    assert_seen(&verdict, "retry", "redis.unreachable", Scope::Sink);
    assert_found(&sink.examine(&[]).await, "reachable", Level::Fail, "127.0.0.1");
    sink.close().await;
    assert_seen(&publish_one(&sink, loose("s")).await, "retry", "redis.closed", Scope::Sink);
    drop(sink);
    until(async || tasks() <= before).await;
}
