//! Several relays side by side: fair shares, and a hand-over that is as quick as the way one leaves.
//!
//! A relay that leaves gives its lanes back at once; one that dies is noticed by the session lock that dies
//! with it, within 2 s; one whose host stands still keeps its lanes until the lease is over, and cannot
//! settle anything when it wakes (G4, F20).

use crate::ledger::assert_key_order;
use crate::load::{Load, connect};
use crate::relay::{Relay, WAIT};
use crate::rig::{Site, TO_FILE, await_all, await_settled, config, count};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::TestDatabase;
use rustix::process::Signal;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// Promised: within 2 s, however a relay comes or goes. The rest is for a machine that does other things too;
/// after a lease of 20 s anybody would have noticed.
const SHARE_MAX: Duration = Duration::from_secs(15);

async fn owners(client: &Client) -> Vec<String> {
    let sql = "select coalesce(owner, '') from posthaste.lanes where expires_at > clock_timestamp() or owner is null";
    client.query(sql, &[]).await.expect("lanes").iter().map(|row| row.get(0)).collect()
}

/// Waits until the four lanes are shared like this, and says how long that took.
async fn shared(
    client: &Client,
    shares: &[(&Relay, std::ops::RangeInclusive<usize>)],
    within: Duration,
) -> Duration {
    let started = Instant::now();
    eventually("the lanes are shared", within, || async {
        let owners = owners(client).await;
        let fair = shares
            .iter()
            .all(|(relay, share)| share.contains(&owners.iter().filter(|owner| relay.owns(owner)).count()));
        let all = owners.iter().filter(|owner| shares.iter().any(|(relay, _)| relay.owns(owner))).count();
        (fair && all == 4).then_some(())
    })
    .await;
    started.elapsed()
}

/// How many lanes each relay has, as `status --json` says it.
fn shares_in_status(site: &Site, relays: &[&Relay]) -> Vec<usize> {
    let status = site.run("posthaste.toml", &["status", "--json"]).ok().json();
    let lanes = status["outboxes"][0]["sinks"][0]["lanes"].as_array().cloned().unwrap_or_default();
    let owner = |lane: &serde_json::Value| lane["owner"].as_str().unwrap_or_default().to_owned();
    relays.iter().map(|relay| lanes.iter().filter(|lane| relay.owns(&owner(lane))).count()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn four_lanes_are_shared_left_and_inherited() {
    let database = require_service!(TestDatabase::create().await);
    let site = Site::new();
    site.write("posthaste.toml", &config(&database.url(), "", "lanes = 4", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    let first = site.start("posthaste.toml");
    shared(&client, &[(&first, 4..=4)], WAIT).await;
    let load = Load::start(&database.url(), &["orders"], 400).await;

    let second = site.start("posthaste.toml");
    let took = shared(&client, &[(&first, 2..=2), (&second, 2..=2)], SHARE_MAX).await;
    assert_eq!(shares_in_status(&site, &[&first, &second]), [2, 2]);
    eprintln!("fair shares: two each after {took:?}");

    let third = site.start("posthaste.toml");
    shared(&client, &[(&first, 1..=2), (&second, 1..=2), (&third, 1..=2)], WAIT).await;
    let name = third.pid();
    third.stop().await;
    // At once: when it is gone, nothing is its own any more.
    let left =
        owners(&client).await.into_iter().filter(|owner| owner.split(':').nth(1) == Some(&*name)).count();
    assert_eq!(left, 0, "G8: a relay that leaves gives its lanes back");
    let took = shared(&client, &[(&first, 2..=2), (&second, 2..=2)], SHARE_MAX).await;
    eprintln!("fair shares: a relay that leaves is replaced after {took:?}");

    let mut fourth = site.start("posthaste.toml");
    shared(&client, &[(&first, 1..=2), (&second, 1..=2), (&fourth, 1..=2)], WAIT).await;
    fourth.kill9();
    let took = shared(&client, &[(&first, 2..=2), (&second, 2..=2)], SHARE_MAX).await;
    eprintln!("fair shares: a relay that dies is replaced after {took:?}");

    load.stop().await;
    let log = await_all(&client, &site.file, "shares").await;
    await_settled(&client).await;
    assert_key_order(&log, &site.file, "shares");
    first.stop().await;
    second.stop().await;
    assert_eq!(count(&client, "select count(*) from posthaste.lanes where owner is not null").await, 0, "G8");
}

/// F20, G4: a process that stands still past its lease wakes up as nobody.
#[tokio::test(flavor = "multi_thread")]
async fn f20_g4_a_stopped_relay_settles_nothing_after_its_lease() {
    let database = require_service!(TestDatabase::create().await);
    let site = Site::new();
    let short = "lease_ttl_ms = 4000\npublish_timeout_ms = 1000\nheartbeat_ms = 200";
    site.write("posthaste.toml", &config(&database.url(), short, "", TO_FILE));
    site.run("posthaste.toml", &["migrate", "up"]).ok();
    let client = connect(&database.url()).await;
    let stopped = site.start("posthaste.toml");
    let load = Load::start(&database.url(), &["orders"], 400).await;
    eventually("it delivers", WAIT, || async { (site.file.len() > 200).then_some(()) }).await;
    let successor = site.start("posthaste.toml");
    let known = "select count(*) from posthaste.relays where expires_at > clock_timestamp()";
    eventually("both are there", WAIT, || async { (count(&client, known).await == 2).then_some(()) }).await;

    stopped.signal(Signal::STOP);
    let started = Instant::now();
    eventually("the successor owns the lane", WAIT, || async {
        owners(&client).await.iter().any(|owner| successor.owns(owner)).then_some(())
    })
    .await;
    eprintln!("stopped relay: the successor owned its lane after {:?}", started.elapsed());
    await_all(&client, &site.file, "the successor delivers").await;
    stopped.signal(Signal::CONT);
    stopped.says("lease lost").await;

    load.stop().await;
    let log = await_all(&client, &site.file, "stopped relay").await;
    await_settled(&client).await;
    assert_key_order(&log, &site.file, "stopped relay");
    let late = "select count(*) from posthaste.receipts old join posthaste.receipts new using (sink, lane) \
                where old.epoch < new.epoch and old.n > new.n";
    assert_eq!(count(&client, late).await, 0, "G4: nothing is settled under a lost lease");
    successor.stop().await;
    stopped.stop().await;
}
