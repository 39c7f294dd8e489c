//! One huge transaction, open for a long time, while others pass and the relay is killed again and again.
//!
//! Nobody waits for it (F1). When it commits, its events are late rows by the hundred thousand: they are
//! caught up with page by page, against a fixed target that survives each kill (F18). Nothing is lost, a kill
//! repeats a window at most, and the relay's memory does not know how large the transaction was.

use crate::ledger::{assert_key_order, missing};
use crate::load::connect;
use crate::relay::{Relay, WAIT};
use crate::rig::{Site, TO_FILE, await_settled, config, log};
use crate::scale::{RSS_MAX_MB, sized};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, Version};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

const PAGE: usize = 100;
const WINDOW: usize = 1_000;
const LIFE: Duration = Duration::from_secs(2);
const KEYS: i64 = 500;

/// Relays that live for two seconds each, once they have begun to work.
struct Killed<'a> {
    site: &'a Site,
    kills: usize,
    rss_peak_mb: u64,
}

impl Killed<'_> {
    /// One life. It may end sooner, with the work.
    async fn live(&mut self, is_done: impl Fn() -> bool) {
        let mut relay: Relay = self.site.start("posthaste.toml");
        relay.says("lane taken").await;
        let end = Instant::now() + LIFE;
        while Instant::now() < end && !is_done() {
            tokio::time::sleep(Duration::from_millis(20)).await; // pace: it lives
        }
        self.rss_peak_mb = self.rss_peak_mb.max(relay.rss_peak_mb());
        relay.kill9();
        self.kills += 1;
    }
}

async fn append(client: &Client, prefix: &str, events: i64) {
    let sql = format!(
        "insert into posthaste.outbox (topic, key, payload) \
         select 't', '{prefix}' || g % {KEYS}, 'x' from generate_series(1, {events}) g"
    );
    client.batch_execute(&sql).await.expect("an append");
}

#[tokio::test(flavor = "multi_thread")]
async fn f18_a_huge_transaction_under_kills() {
    let (large, small) = (sized(20_000, 1_000_000), sized(5_000, 100_000));
    let open = Duration::from_secs(sized(5, 60));
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let site = Site::new();
    let bounds = format!("page_events_max = {PAGE}\nmax_unsettled_events = {WINDOW}");
    site.write("posthaste.toml", &config(&server.url(), &bounds, "", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let huge = connect(&server.url()).await;
    huge.batch_execute("begin").await.expect("a transaction");
    append(&huge, "huge-", large).await;

    // Others pass while it is open, a tenth of a second's worth at a time.
    let (url, opened) = (server.url(), Instant::now());
    let passing = tokio::spawn(async move {
        let (client, steps) = (connect(&url).await, open.as_secs() as i64 * 8);
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        for _ in 0..steps {
            ticks.tick().await; // pace
            append(&client, "small-", small / steps).await;
        }
        small / steps * steps
    });
    let mut relays = Killed { site: &site, kills: 0, rss_peak_mb: 0 };
    while opened.elapsed() < open {
        relays.live(|| false).await;
    }
    let small = passing.await.expect("the others are appended") as usize;
    let passed = site.file.distinct();
    while site.file.distinct() < small {
        assert!(opened.elapsed() < open + WAIT, "F1: the others wait for it: {passed} of {small}");
        relays.live(|| site.file.distinct() >= small).await;
    }

    huge.batch_execute("commit").await.expect("the commit");
    let (all, committed) = (large as usize + small, Instant::now());
    while site.file.distinct() < all {
        assert!(
            committed.elapsed() < Duration::from_secs(sized(180, 900)),
            "G2: {} of {all} have arrived",
            site.file.distinct()
        );
        relays.live(|| site.file.distinct() >= all).await;
    }
    let (kills, rss, duplicates) = (relays.kills, relays.rss_peak_mb, site.file.duplicates());
    eprintln!(
        "huge transaction: {large} open for {open:?}, {passed} of {small} passed meanwhile; caught up after {:?}; \
         {kills} kills, {duplicates} duplicates, {rss} MB at most",
        committed.elapsed()
    );
    let relay = site.start("posthaste.toml");
    let client = connect(&server.url()).await;
    relay.says("lane taken").await;
    await_settled(&client).await;
    relay.stop().await;
    let log = log(&client).await;
    assert_eq!((log.len(), missing(&log, &site.file)), (all, 0), "G2: none is lost");
    assert_key_order(&log, &site.file, "huge transaction");
    eventually("the file is read", WAIT, || async { (site.file.distinct() == all).then_some(()) }).await;
    assert!(site.file.duplicates() <= (kills + 1) * WINDOW, "a kill repeats a window at most: {duplicates}");
    assert!(rss <= RSS_MAX_MB, "G7: memory knows how large the transaction was: {rss} MB");
}
