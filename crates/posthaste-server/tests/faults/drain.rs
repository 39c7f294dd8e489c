//! kill -9 in the middle of a drain: every event there, in order, few of them twice, and soon again.

use crate::broker::{make_stream, watch_stream, watch_subject};
use crate::ledger::assert_key_order;
use crate::load::connect;
use crate::relay::WAIT;
use crate::rig::{Site, assert_blameless, await_all, await_settled, blame, config};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions, TestDatabase};
use std::time::{Duration, Instant};

const EVENTS: i64 = 60_000;
/// The relay dies when this many have arrived.
const DEATH_AT: usize = 20_000;
/// `max_unsettled_events`.
const TWICE_MAX: usize = 8_192;
/// Promised: 2 s. The rest is for a machine that does other things too; after a lease of 20 s anybody would
/// resume.
const RESUME_MAX: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn g2_g3_g7_a_relay_killed_in_a_drain_of_60_000() {
    let database = require_service!(TestDatabase::create().await);
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    make_stream(nats.addr(), None, "EVENTS", &["orders"]);
    let (kept, sent) =
        (watch_stream(nats.addr(), None, "EVENTS"), watch_subject(nats.addr(), None, "orders"));
    let site = Site::new();
    let rest = format!(
        "[sinks.nats]\ntype = \"nats\"\nurl = \"{}\"\nstart_at = \"earliest\"\n[[route]]\ntopic = \"*\"\nsink = \"nats\"\n",
        nats.url()
    );
    site.write("posthaste.toml", &config(&database.url(), "", "", &rest));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    let append = "insert into posthaste.outbox (topic, key, payload) \
                  select 'orders', 'key-' || g % 1000, convert_to(repeat('x', 500), 'UTF8') from generate_series(1, $1::bigint) g";
    client.execute(append, &[&EVENTS]).await.expect("a backlog");

    let mut relay = site.start("posthaste.toml");
    eventually("the drain is in full flow", WAIT, || async { (sent.len() >= DEATH_AT).then_some(()) }).await;
    relay.kill9();
    let before = sent.len();
    assert!(before < EVENTS as usize, "the relay died in the middle");
    let started = Instant::now();
    let relay = site.start("posthaste.toml");
    eventually("deliveries resume", RESUME_MAX, || async { (sent.len() > before).then_some(()) }).await;
    let resumed = started.elapsed();

    let log = await_all(&client, &kept, "after the kill").await;
    await_settled(&client).await;
    assert_key_order(&log, &kept, "in the stream");
    assert_key_order(&log, &sent, "as published");
    eprintln!("killed drain: resumed after {resumed:?}, {} sent twice", sent.duplicates());
    assert!(sent.duplicates() <= TWICE_MAX, "G7: {} were sent twice", sent.duplicates());
    let (dead, tried) = blame(&client).await;
    assert_blameless(dead, tried, "after the kill");
    relay.stop().await;
}
