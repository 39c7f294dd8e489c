//! The whole way to Kafka, read by Kafka's own client: hot keys, and everything that can happen on the way.

use crate::ledger::{Deliveries, Delivery, assert_key_order, missing};
use crate::load::connect;
use crate::relay::WAIT;
use crate::rig::{Site, assert_blameless, await_settled, blame, config, count, log};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Kafka, KafkaOptions, KafkaSecurity, TestDatabase};
use std::time::{Duration, SystemTime};
use tokio_postgres::Client;

/// A backlog, so that the relay always has its hands full.
const EVENTS: i64 = 200_000;

/// A thousand keys, the n-th as often as 1/n: `1000^u` is log-uniform.
const APPEND: &str = "select posthaste.append('orders', 'x', 'k' || floor(1000 ^ random())::int)
    from generate_series(1, $1::bigint)";

/// How far the relay has come.
async fn settled(client: &Client) -> i64 {
    count(client, "select coalesce(max(position), 0)::bigint from posthaste.lanes_now").await
}

async fn until(client: &Client, part: i64) {
    let to = EVENTS * part / 10;
    eventually("it goes on", WAIT, || async { (settled(client).await >= to).then_some(()) }).await;
}

/// G2, G3: answers are lost, the broker is killed, the relay is killed; every event is there, and first deliveries of a
/// key are in append order.
#[tokio::test(flavor = "multi_thread")]
async fn g3_hot_keys_keep_their_order_through_everything() {
    let options = KafkaOptions::default().listener("proxied", KafkaSecurity::Proxied);
    let mut kafka = require_service!(Kafka::start(&options).await);
    let database = require_service!(TestDatabase::create().await);
    kafka.create_topic("orders", 6, 1, &[]).await.expect("a topic");
    let site = Site::new();
    let sink = format!(
        "[sinks.kafka]\ntype = \"kafka\"\nurl = \"{}\"\n[[route]]\ntopic = \"*\"\nsink = \"kafka\"\n",
        kafka.bootstrap_at("proxied")
    );
    site.write("posthaste.toml", &config(&database.url(), "", "", &sink));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    client.query(APPEND, &[&EVENTS]).await.expect("a backlog");
    let mut relay = site.start("posthaste.toml");

    until(&client, 1).await;
    kafka.node(1).proxy("proxied").cut().await; // what was sent is unknown
    kafka.node(1).proxy("proxied").pass().await;
    until(&client, 3).await;
    relay.kill9();
    relay = site.start("posthaste.toml");
    until(&client, 5).await;
    kafka.kill9().await.expect("killed");
    kafka.start_again().await.expect("starts");
    until(&client, 7).await;
    kafka.node(1).proxy("proxied").half_open().await; // answers are lost, the line stays
    tokio::time::sleep(Duration::from_secs(2)).await; // pace: some are lost
    kafka.node(1).proxy("proxied").cut().await;
    kafka.node(1).proxy("proxied").pass().await;
    await_settled(&client).await;
    relay.stop().await;

    let log = log(&client).await;
    assert_eq!(log.len(), EVENTS as usize);
    let arrived = Deliveries::default();
    // Partition by partition, in the order of their offsets: a key lies in one of them.
    for record in kafka.dump("orders").await.expect("the Java client reads") {
        arrived.push(Delivery {
            id: record.header("Message-ID").expect("an id"),
            key: record.key.map(|key| String::from_utf8_lossy(&key).into_owned()),
            payload: Vec::new(),
            at: SystemTime::now(),
        });
    }
    eprintln!("kafka, hot keys: {} events, {} duplicates", log.len(), arrived.duplicates());
    assert_eq!(missing(&log, &arrived), 0, "G2");
    assert_key_order(&log, &arrived, "hot keys in Kafka");
    let (dead, tried) = blame(&client).await;
    assert_blameless(dead, tried, "outages of Kafka");
}
