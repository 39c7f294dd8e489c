//! Very many deferred events, on as many keys; the relay is killed and starts again.
//!
//! Which keys are held is the database's knowledge: a relay that loaded it would die of it at its next start
//! (F55). It starts in bounded memory, fresh events pass at once (F51), and the next event of any key that
//! waits is still held (G3).

use crate::broker::{make_stream, watch_stream};
use crate::load::connect;
use crate::rig::{Site, config, count};
use crate::scale::{RSS_MAX_MB, sized};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions, Postgres, PostgresOptions, Version};
use std::time::{Duration, Instant};

/// Fresh events: for each that must pass, one that must wait behind its key.
const FRESH: i64 = 5_000;

/// A subject that NATS cannot have is an event's own failure; here it counts as one that may pass, in an
/// hour.
const SINKS: &str = "[sinks.nats]\ntype = \"nats\"\nstart_at = \"earliest\"\n\
    classes = { \"nats.bad_subject\" = \"transient\" }\n";
const ROUTE: &str = "[[route]]\ntopics = [\"*\"]\nsinks = [\"nats\"]\n\
    retry = { max_attempts = 100, initial_ms = 3600000, max_ms = 3600000 }\n";

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn f55_g3_very_many_deferred_events_and_a_kill() {
    let many: i64 = sized(30_000, 1_000_000);
    let within = Duration::from_secs(sized(180, 900));
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    make_stream(nats.addr(), None, "EVENTS", &["orders.>"]);
    let arrived = watch_stream(nats.addr(), None, "EVENTS");
    let site = Site::new();
    let rest = format!("{SINKS}url = \"{}\"\n{ROUTE}", nats.url());
    site.write("posthaste.toml", &config(&server.url(), "", "", &rest));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&server.url()).await;
    let mut first = site.start("posthaste.toml");
    let sql = "insert into posthaste.outbox (topic, key, payload) \
               select 'orders..x', 'key-' || g, 'x' from generate_series(1, $1::bigint) g";
    client.execute(sql, &[&many]).await.expect("an append");
    let started = Instant::now();
    let deferred = "select count(*) from posthaste.deferred";
    eventually("all are deferred", within, || async {
        (count(&client, deferred).await == many).then_some(())
    })
    .await;
    let (took, before_mb) = (started.elapsed(), first.rss_peak_mb());
    first.kill9();

    let second = site.start("posthaste.toml");
    let sql = "insert into posthaste.outbox (topic, key, payload) select 'orders.fresh', \
               case when g % 2 = 0 then 'key-' || g / 2 * ($1::bigint / $2::bigint) else 'fresh-' || g end, 'y' \
               from generate_series(2, 2 * $2::bigint + 1) g";
    client.execute(sql, &[&many, &FRESH]).await.expect("an append");
    eventually("fresh events pass", within, || async {
        (arrived.distinct() >= FRESH as usize).then_some(())
    })
    .await;
    let held = "select count(*) from posthaste.deferred where reason = 'held' and topic = 'orders.fresh'";
    eventually("the others are held", within, || async {
        (count(&client, held).await == FRESH).then_some(())
    })
    .await;
    let after_mb = second.rss_peak_mb();
    eprintln!(
        "many deferred: {many} on as many keys after {took:?}, {before_mb} MB at most; after a kill {after_mb} MB"
    );
    second.stop().await;
    assert_eq!(arrived.distinct(), FRESH as usize, "G3: a held key overtook");
    assert_eq!(count(&client, "select count(*) from posthaste.dead_letters").await, 0);
    assert!(after_mb <= RSS_MAX_MB, "F55: a start costs {after_mb} MB");
    // While they are put aside, a whole window of them is in hand twice.
    assert!(before_mb <= RSS_MAX_MB * 5 / 4, "G7: putting aside costs {before_mb} MB");
}
