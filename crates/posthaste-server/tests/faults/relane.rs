//! The number of lanes changes while events flow: nothing lost, keys in order, relays join again (F25).

use crate::ledger::assert_key_order;
use crate::load::{Load, connect};
use crate::relay::WAIT;
use crate::rig::{Site, TO_FILE, assert_blameless, await_all, await_settled, blame, config, count};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use std::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn f25_lanes_change_under_load() {
    let database = require_service!(TestDatabase::create().await);
    let site = Site::new();
    site.write("posthaste.toml", &config(&database.url(), "heartbeat_ms = 300", "", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    let (first, second) = (site.start("posthaste.toml"), site.start("posthaste.toml"));
    let load = Load::start(&database.url(), &["orders", "invoices"], 600).await;
    eventually("events flow", WAIT, || async { (site.file.len() > 300).then_some(()) }).await;
    for lanes in [4_i64, 2, 7, 1] {
        let started = Instant::now();
        site.run("posthaste.toml", &["lanes", "set", &lanes.to_string(), "--reason", "test"]).ok();
        let owned = "select case when count(*) = count(owner) then count(*) else 0 end from posthaste.lanes";
        eventually("all lanes are owned", WAIT, || async {
            (count(&client, owned).await == lanes).then_some(())
        })
        .await;
        let before = site.file.len();
        eventually("events flow", WAIT, || async { (site.file.len() > before + 300).then_some(()) }).await;
        eprintln!("{lanes} lanes: owned and flowing after {:?}", started.elapsed());
    }
    load.stop().await;
    let log = await_all(&client, &site.file, "lanes changed").await;
    await_settled(&client).await;
    assert_key_order(&log, &site.file, "lanes changed");
    let (dead, tried) = blame(&client).await;
    assert_blameless(dead, tried, "lanes changed");
    first.stop().await;
    second.stop().await;
}
