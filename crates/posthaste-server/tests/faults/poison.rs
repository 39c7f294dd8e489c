//! Events that no broker could take: one dead letter each, with a code that says why, and the rest flows.
//!
//! A plain INSERT checks nothing, so the relay does (F49). What is merely unusual, zero bytes, no bytes,
//! invalid UTF-8, arrives byte by byte (F86).

use crate::broker::{make_stream, watch_stream};
use crate::load::{append, connect};
use crate::relay::WAIT;
use crate::rig::{Site, await_settled, config, count};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions, TestDatabase};
use std::collections::BTreeMap;

/// A name, the values of `(topic, key, headers, payload)`, and the code of its dead letter.
const POISON: [(&str, &str, &str); 13] = [
    ("empty topic", "'', null, null, 'x'", "event.limits"),
    ("white space in the topic", "'orders placed', null, null, 'x'", "event.limits"),
    ("long topic", "repeat('t', 300), null, null, 'x'", "event.limits"),
    ("wildcard as subject", "'orders.>', null, null, 'x'", "nats.bad_subject"),
    ("empty part of a subject", "'orders..x', null, null, 'x'", "nats.bad_subject"),
    ("reserved subject", "'$JS.API.INFO', null, null, 'x'", "nats.bad_subject"),
    ("empty key", "'orders.x', '', null, 'x'", "event.limits"),
    ("long key", "'orders.x', repeat('k', 2000), null, 'x'", "event.limits"),
    ("10 MB", "'orders.x', null, null, convert_to(repeat('p', 10000000), 'UTF8')", "event.limits"),
    (
        "too much for the broker",
        "'orders.x', null, null, convert_to(repeat('p', 1048576), 'UTF8')",
        "nats.too_large",
    ),
    ("headers as a list", "'orders.x', null, '[1]', 'x'", "event.defect"),
    ("headers as text", "'orders.x', null, '\"h\"', 'x'", "event.defect"),
    ("a header that is a number", "'orders.x', null, '{\"a\": 1}', 'x'", "event.defect"),
];

/// Payloads that are fine.
const UNUSUAL: [&[u8]; 4] = [b"", b"\0\0\0", b"a\0b", b"\xff\xfe\x80 no text"];

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn f49_f86_poison_ends_as_one_dead_letter_each_and_the_rest_flows() {
    let database = require_service!(TestDatabase::create().await);
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    make_stream(nats.addr(), None, "EVENTS", &["orders.>"]);
    let arrived = watch_stream(nats.addr(), None, "EVENTS");
    let site = Site::new();
    let rest = format!(
        "[sinks.nats]\ntype = \"nats\"\nurl = \"{}\"\nstart_at = \"earliest\"\n[[route]]\ntopic = \"*\"\nsink = \"nats\"\n",
        nats.url()
    );
    site.write("posthaste.toml", &config(&database.url(), "", "", &rest));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    let relay = site.start("posthaste.toml");
    let mut expected = BTreeMap::new();
    for (name, values, code) in POISON {
        let sql = format!(
            "insert into posthaste.outbox (topic, key, headers, payload) values ({values}) returning id::text"
        );
        let id: String = client.query_one(&sql, &[]).await.expect(name).get(0);
        expected.insert(id, (name, code));
        append(&client, "orders.good", 40).await;
    }
    let mut unusual = Vec::new();
    for payload in UNUSUAL {
        let sql =
            "insert into posthaste.outbox (topic, payload) values ('orders.odd', $1) returning id::text";
        unusual.push((
            client.query_one(sql, &[&payload]).await.expect("an odd one").get::<_, String>(0),
            payload,
        ));
    }

    let good = POISON.len() * 40 + UNUSUAL.len();
    eventually("the rest flows", WAIT, || async { (arrived.ids().len() >= good).then_some(()) }).await;
    let dead = || count(&client, "select count(*) from posthaste.dead_letters");
    eventually("the poison is dead", WAIT, || async { (dead().await == POISON.len() as i64).then_some(()) })
        .await;
    await_settled(&client).await;
    let rows =
        client.query("select id::text, error_code, error, attempts from posthaste.dead_letters", &[]).await;
    for row in rows.expect("dead letters") {
        let (id, code, error, attempts): (String, String, String, i32) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let (name, expected) = expected.remove(&id).expect("one dead letter each");
        eprintln!("poison: {name}: {code} after {attempts}: {error}");
        assert_eq!(code, expected, "{name}: {error}");
    }
    assert!(expected.is_empty(), "no dead letter for {expected:?}");
    for (id, payload) in unusual {
        let got = arrived.all().into_iter().find(|delivery| delivery.id == id).expect("it arrived");
        assert_eq!(got.payload, payload, "F86: byte by byte");
    }
    assert_eq!(arrived.ids().len(), good, "nothing of the poison arrived");
    relay.stop().await;
}

/// A topic that no route takes is a dead letter that says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_without_a_route_is_a_dead_letter_that_says_so() {
    let database = require_service!(TestDatabase::create().await);
    let site = Site::new();
    let rest = "[sinks.file]\ntype = \"stdout\"\n[[route]]\ntopic = \"orders.*\"\nsink = \"file\"\n";
    site.write("posthaste.toml", &config(&database.url(), "", "", rest));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    let relay = site.start("posthaste.toml");
    relay.says("lane taken").await;
    let lanes = "select count(*) from posthaste.lanes where owner is not null";
    eventually("all lanes are taken", WAIT, || async { (count(&client, lanes).await == 2).then_some(()) })
        .await;
    append(&client, "nowhere", 1).await;
    append(&client, "orders.placed", 100).await;
    eventually("the rest flows", WAIT, || async { (site.file.len() == 100).then_some(()) }).await;
    eventually("it is dead", WAIT, || async {
        let list = site.run("posthaste.toml", &["dead", "list", "--json"]).ok();
        (list.out.contains("route.none") && list.out.contains("nowhere")).then_some(())
    })
    .await;
    relay.stop().await;
}
