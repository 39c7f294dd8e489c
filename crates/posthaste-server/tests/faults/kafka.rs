//! The whole way to Kafka, read by Kafka's own client: hot keys, and everything that can happen on the way.

use crate::ledger::{Deliveries, Delivery, assert_key_order, missing};
use crate::load::{Load, connect};
use crate::relay::WAIT;
use crate::rig::{Site, assert_blameless, await_settled, blame, config, count, log};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Certs, Kafka, KafkaOptions, KafkaRight, KafkaSecurity, TestDatabase};
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
    eventually("it goes on", 2 * WAIT, || async { (settled(client).await >= to).then_some(()) }).await;
}

/// What a cursor has passed may still wait among the deferred.
async fn await_nothing_waits(client: &Client) {
    let waiting = "select count(*) from posthaste.deferred";
    eventually("nothing waits", WAIT, || async { (count(client, waiting).await == 0).then_some(()) }).await;
}

/// G2, G3: answers are lost, the broker is killed, the relay is killed; every event is there, and first
/// deliveries of a key are in append order.
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
    until(&client, 10).await;
    await_settled(&client).await;
    await_nothing_waits(&client).await;
    relay.stop().await;

    let log = log(&client).await;
    assert_eq!(log.len(), EVENTS as usize);
    let arrived = read(&kafka, "orders").await;
    eprintln!("kafka, hot keys: {} events, {} duplicates", log.len(), arrived.duplicates());
    assert_eq!(missing(&log, &arrived), 0, "G2");
    assert_key_order(&log, &arrived, "hot keys in Kafka");
    let (dead, tried) = blame(&client).await;
    assert_blameless(dead, tried, "outages of Kafka");
}

/// What a topic holds, partition by partition, in the order of their offsets: a key lies in one of them.
async fn read(kafka: &Kafka, topic: &str) -> Deliveries {
    let arrived = Deliveries::default();
    for record in kafka.dump(topic).await.expect("the Java client reads") {
        arrived.push(Delivery {
            id: record.header("Message-ID").expect("an id"),
            key: record.key.map(|key| String::from_utf8_lossy(&key).into_owned()),
            payload: Vec::new(),
            at: SystemTime::now(),
        });
    }
    arrived
}

/// Rights are taken away under load. Events of one route wait, those of another are dead letters because the
/// configuration says so, and those of the third flow. With the right back, all that waited is there, in
/// order.
#[tokio::test(flavor = "multi_thread")]
async fn f30_a_right_that_is_lost_under_load_stops_its_route_only() {
    let certs = Certs::make().expect("certificates");
    let mtls = KafkaSecurity::MutualTls(certs.server().clone(), certs.ca().to_owned());
    let kafka =
        require_service!(Kafka::start(&KafkaOptions::default().listener("MTLS", mtls).authorizer()).await);
    let database = require_service!(TestDatabase::create().await);
    let right = |topic: &str| KafkaRight::topic("shop", "WRITE", topic);
    for topic in ["keeping", "waiting", "ending"] {
        kafka.create_topic(topic, 2, 1, &[]).await.expect("a topic");
        kafka.allow(&right(topic)).await.expect("allowed");
    }
    let client_pair = certs.client("shop").expect("a certificate");
    let sink = |name: &str, more: &str| {
        format!(
            "[sinks.{name}]\ntype = \"kafka\"\nurl = {:?}\nca_file = {:?}\ncert_file = {:?}\nkey_file = {:?}\n{more}\n",
            kafka.bootstrap_at("MTLS"),
            certs.ca(),
            client_pair.certificate,
            client_pair.key
        )
    };
    let route = |topic: &str, sink: &str| {
        format!("[[route]]\nname = {topic:?}\ntopic = {topic:?}\nsink = {sink:?}\n")
    };
    let rest = [
        sink("patient", ""),
        sink("strict", "classes = { \"kafka.denied\" = \"permanent\" }"),
        route("keeping", "patient"),
        route("waiting", "patient"),
        route("ending", "strict"),
    ];
    let site = Site::new();
    site.write("posthaste.toml", &config(&database.url(), "", "", &rest.concat()));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    let relay = site.start("posthaste.toml");
    let load = Load::start(&database.url(), &["keeping", "waiting", "ending"], 300).await;
    let more = async |topic: &str, events: usize| {
        let before = read(&kafka, topic).await.distinct();
        let enough = || async { (read(&kafka, topic).await.distinct() >= before + events).then_some(()) };
        eventually(&format!("{topic} flows"), WAIT, enough).await;
    };
    for topic in ["keeping", "waiting", "ending"] {
        more(topic, 100).await;
    }
    kafka.revoke(&right("waiting")).await.expect("revoked");
    kafka.revoke(&right("ending")).await.expect("revoked");
    let dead = "select count(*) from posthaste.dead_letters where error_code = 'kafka.denied'";
    let given_up = || async { (count(&client, dead).await >= 50).then_some(()) };
    eventually("events without a right are dead letters", WAIT, given_up).await;
    more("keeping", 500).await;
    kafka.allow(&right("waiting")).await.expect("allowed");
    kafka.allow(&right("ending")).await.expect("allowed");
    more("waiting", 100).await;
    load.stop().await;
    await_settled(&client).await;
    await_nothing_waits(&client).await;
    relay.stop().await;

    let log = log(&client).await;
    let dead = client.query("select id::text, topic from posthaste.dead_letters", &[]).await.expect("read");
    assert!(dead.iter().all(|row| row.get::<_, &str>(1) == "ending"), "only what was configured so");
    let arrived = Deliveries::default();
    for topic in ["keeping", "waiting", "ending"] {
        read(&kafka, topic).await.all().into_iter().for_each(|delivery| arrived.push(delivery));
    }
    assert_key_order(&log, &arrived, "rights lost under load");
    let (there, given_up) = (arrived.ids(), dead.iter().map(|row| row.get::<_, String>(0)));
    let given_up: std::collections::HashSet<String> = given_up.collect();
    let lost = log.iter().filter(|(id, _)| !there.contains(id) && !given_up.contains(id)).count();
    assert_eq!(lost, 0, "G2: of {} events, {} are dead letters", log.len(), given_up.len());
}
