//! A server crash under an application that does not wait for the disk (F7).
//!
//! With `synchronous_commit = off` the relay sees, and may publish, events that a crash then takes back; the
//! sequence goes back with them, and its numbers are drawn a second time, by other events. A cursor that had
//! passed them would skip those. Ours dies with the crash: what is in the log after recovery is delivered.

use crate::ledger::missing;
use crate::load::append;
use crate::relay::WAIT;
use crate::rig::{Site, TO_FILE, await_all, await_settled, config, count, log};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, Version};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio_postgres::Client;

/// Crashes that must have taken numbers back, and how many may be needed for that.
const TAKEN_BACK: usize = 2;
const CRASHES_MAX: usize = 15;

/// Appends without waiting for the disk until the server is gone, and notes the last number it saw. Several
/// events in a transaction: the server writes 32 numbers of a sequence ahead, and less would not go back.
async fn append_until_the_crash(client: Client, seen: Arc<AtomicI64>) {
    let sql = "with e as (select posthaste.append('orders', 'x'::text, 'key-' || g % 40) from generate_series(1, 50) g) \
               select last_value from posthaste.outbox_seq, (select count(*) from e) n";
    client.batch_execute("set synchronous_commit = off").await.expect("a setting");
    loop {
        match client.query_one(sql, &[]).await {
            Ok(row) => seen.fetch_max(row.get(0), Ordering::Relaxed),
            Err(_) => return,
        };
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f7_no_reused_number_is_skipped_after_a_server_crash() {
    // The WAL writer sleeps and settlements, which flush, are rare: a crash takes something.
    let options = PostgresOptions::default()
        .setting("wal_writer_delay", "10s")
        .setting("wal_writer_flush_after", "1GB");
    let mut server = require_service!(Postgres::start(Version::V15, &options).await);
    let site = Site::new();
    site.write("posthaste.toml", &config(&server.url(), "settle_interval_ms = 2000", "", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let relay = site.start("posthaste.toml");
    let (mut taken_back, mut crashes) = (0, 0);
    while taken_back < TAKEN_BACK {
        assert!(crashes < CRASHES_MAX, "no crash takes anything back: this shows nothing");
        crashes += 1;
        let seen = Arc::new(AtomicI64::new(0));
        let client = server.admin().await.expect("the server answers");
        let load = tokio::spawn(append_until_the_crash(client, Arc::clone(&seen)));
        let before = site.file.len();
        eventually("deliveries flow", WAIT, || async { (site.file.len() > before + 300).then_some(()) })
            .await;
        server.kill9().await.expect("the server dies");
        load.await.expect("the application ends");
        server.start_again().await.expect("the server recovers");
        let client = server.admin().await.expect("the server answers");
        let last = count(&client, "select coalesce(max(seq), 0) from posthaste.outbox").await;
        let drawn = count(&client, "select last_value from posthaste.outbox_seq").await;
        let seen = seen.load(Ordering::Relaxed);
        taken_back += usize::from(drawn < seen);
        eprintln!("server crash: {seen} were drawn, the log ends at {last}, the sequence at {drawn}");
        append(&client, "orders", 500).await;
        await_all(&client, &site.file, "after a server crash").await;
    }
    let client = server.admin().await.expect("the server answers");
    await_settled(&client).await;
    assert_eq!(missing(&log(&client).await, &site.file), 0, "F7: nothing of the log is skipped");
    relay.stop().await;
}
