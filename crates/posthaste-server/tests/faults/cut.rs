//! The line to the database: cut in the middle of anything, swallowed, frozen on one side.
//!
//! A settlement whose connection went away may or may not have been committed. The relay sends it again
//! and finds out; so whatever byte the line is cut at, nothing is lost, nothing is stuck, and no lane runs
//! from one lost lease into the next (G2, F17).

use crate::ledger::assert_key_order;
use crate::load::{Load, connect};
use crate::relay::{Relay, WAIT};
use crate::rig::{Site, TO_FILE, assert_blameless, await_all, await_settled, blame, config};
use crate::scale::outage_time;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, Proxy, TestDatabase, Version};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// Where the line is cut, in bytes from the client: inside a message, between two, after some settlements.
const CUTS: [u64; 12] = [1, 37, 150, 333, 700, 1_300, 2_100, 4_000, 7_777, 12_000, 20_000, 33_000];
/// After the line is back, deliveries resume within this: some seconds, and the rest for a machine that does
/// other things too. A line that nobody left behind would be waited for by the minute.
const RESUME_MAX: Duration = Duration::from_secs(40);
/// What failed of an outage, call by call.
const TALKATIVE: &str = "heartbeat_ms = 200\n[log]\nlevel = \"info,posthaste::health::diary=debug\"";
/// The end of the statement of a settlement. No other has it, and a connection says it once, before the first
/// one: what it prepared needs no text any more.
const RECEIPT: &str = "segments, counts, sums, delivered)";
/// Which answer to it never comes: that it is prepared, or that it was executed.
const ANSWERS: [u32; 4] = [1, 2, 1, 2];
const SHORT_LEASE: &str = "lease_ttl_ms = 4000\npublish_timeout_ms = 1000\nheartbeat_ms = 200";

struct Scene {
    site: Site,
    database: TestDatabase,
    client: Client,
    proxy: Proxy,
}

impl Scene {
    /// `posthaste.toml` goes through the proxy, `direct.toml` does not.
    async fn set(relay: &str) -> Option<Self> {
        Some(Self::on(require_service!(TestDatabase::create().await, None), relay).await)
    }

    async fn on(database: TestDatabase, relay: &str) -> Self {
        let (proxy, url) = Proxy::start_before(&database.url()).await.expect("a proxy");
        let site = Site::new();
        site.write("posthaste.toml", &config(&url, relay, "", TO_FILE));
        site.write("direct.toml", &config(&database.url(), relay, "", TO_FILE));
        site.run("direct.toml", &["migrate", "up"]).ok();
        let client = connect(&database.url()).await;
        Self { site, database, client, proxy }
    }

    async fn load(&self) -> Load {
        Load::start(&self.database.url(), &["orders"], 400).await
    }

    /// Events that are put aside first: their settlements are transactions of several statements.
    async fn append_for_later(&self) {
        let sql = "select posthaste.append('later', 'x'::text, deliver_at => clock_timestamp() + '100 ms') \
                   from generate_series(1, 20)";
        self.client.batch_execute(sql).await.expect("an append");
    }

    /// Waits for the connection that was aimed at to be cut.
    async fn await_aimed_cut(&self, before: u64) {
        eventually("a connection is cut", WAIT, || async {
            (self.proxy.aimed_cuts() > before).then_some(())
        })
        .await;
    }

    async fn await_delivery(&self, within: Duration) -> Duration {
        let (started, before) = (Instant::now(), self.site.file.len());
        eventually("deliveries go on", within, || async { (self.site.file.len() > before).then_some(()) })
            .await;
        started.elapsed()
    }

    async fn finish(&self, what: &str) {
        let log = await_all(&self.client, &self.site.file, what).await;
        await_settled(&self.client).await;
        assert_key_order(&log, &self.site.file, what);
        let (dead, tried) = blame(&self.client).await;
        assert_blameless(dead, tried, what);
    }
}

fn times(relay: &Relay, text: &str) -> usize {
    relay.said().matches(text).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn g2_a_line_cut_at_any_byte_loses_nothing() {
    let Some(scene) = Scene::set(TALKATIVE).await else { return };
    let relay = scene.site.start("posthaste.toml");
    let load = scene.load().await;
    scene.await_delivery(WAIT).await;
    let unknown = || times(&relay, "settling failed") + times(&relay, "failed=\"settling\"");
    let mut slowest = Duration::ZERO;
    for bytes in CUTS {
        scene.append_for_later().await;
        let before = scene.proxy.aimed_cuts();
        scene.proxy.cut_after_bytes(bytes).await;
        scene.await_aimed_cut(before).await;
        slowest = slowest.max(scene.await_delivery(WAIT).await);
    }
    for _ in 0..5 {
        scene.append_for_later().await;
        scene.proxy.cut().await;
        slowest = slowest.max(scene.await_delivery(WAIT).await);
    }
    // Which statement those cuts have met is a matter of luck. These meet a settlement.
    let by_luck = unknown();
    for (answer, met) in ANSWERS.into_iter().zip(1..) {
        let before = scene.proxy.aimed_cuts();
        scene.proxy.cut_answer(RECEIPT, answer).await;
        scene.proxy.cut().await; // now every connection has to prepare it
        scene.await_aimed_cut(before).await;
        eventually("a settlement is unknown", WAIT, || async { (unknown() >= by_luck + met).then_some(()) })
            .await;
        slowest = slowest.max(scene.await_delivery(WAIT).await);
    }
    let cuts = CUTS.len() + 5 + 2 * ANSWERS.len();
    load.stop().await;
    scene.finish("cut lines").await;
    let (lost, stopped) = (times(&relay, "lease lost"), times(&relay, "the lane stopped"));
    eprintln!(
        "{cuts} cut lines: {} settlements unknown, {lost} leases lost, at most {slowest:?} without deliveries",
        unknown()
    );
    assert!(lost <= cuts && stopped == 0, "G7: no loop of lost leases");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swallowed_line_to_the_database_is_left_behind() {
    let Some(scene) = Scene::set("").await else { return };
    let relay = scene.site.start("posthaste.toml");
    let load = scene.load().await;
    scene.await_delivery(WAIT).await;
    scene.proxy.black_hole().await;
    tokio::time::sleep(outage_time()).await; // pace: the outage lasts
    scene.proxy.pass().await;
    let resumed = scene.await_delivery(RESUME_MAX).await;
    eprintln!("swallowed line: resumed after {resumed:?}");
    load.stop().await;
    scene.finish("swallowed line").await;
    relay.stop().await;
}

/// However many calls fail: down once with the reason, back once.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_database_is_told_once() {
    let Some(scene) = Scene::set("heartbeat_ms = 200").await else { return };
    let relay = scene.site.start("posthaste.toml");
    crate::load::append(&scene.client, "orders", 10).await;
    await_all(&scene.client, &scene.site.file, "before").await;
    scene.proxy.refuse().await;
    scene.proxy.cut().await;
    relay.says("the database is out of reach").await;
    tokio::time::sleep(Duration::from_secs(3)).await; // pace: the outage lasts
    scene.proxy.pass().await;
    relay.says("the database is back").await;
    let warnings = relay.said().lines().filter(|line| line.contains("WARN")).count();
    let (down, back) = (times(&relay, "is out of reach"), times(&relay, "the database is back"));
    assert!(back <= down && down <= 3 && warnings <= 5, "{}", relay.said());
    scene.finish("a refused line").await;
    relay.stop().await;
}

/// The host of one relay loses its line; another one delivers after the lease; the first comes back as
/// nobody.
#[tokio::test(flavor = "multi_thread")]
async fn g4_another_relay_takes_over_from_one_without_a_line() {
    let Some(scene) = Scene::set(SHORT_LEASE).await else { return };
    let cut_off = scene.site.start("posthaste.toml");
    let load = scene.load().await;
    scene.await_delivery(WAIT).await;
    scene.proxy.black_hole().await;
    let successor = scene.site.start("direct.toml");
    let started = Instant::now();
    successor.says("lane taken").await;
    eprintln!("no line: another relay took over after {:?}", started.elapsed());
    scene.await_delivery(RESUME_MAX).await;
    await_all(&scene.client, &scene.site.file, "taken over").await;
    scene.proxy.pass().await;
    let known = "select count(*) from posthaste.relays where expires_at > clock_timestamp()";
    eventually("the first is back", WAIT, || async {
        (crate::rig::count(&scene.client, known).await == 2).then_some(())
    })
    .await;
    load.stop().await;
    scene.finish("taken over").await;
    successor.stop().await;
    cut_off.stop().await;
}

/// Backends of the relay, by their process ids on this machine.
async fn backends(client: &Client) -> Vec<Pid> {
    let sql = "select pid from pg_stat_activity where application_name = 'posthaste' and datname = current_database()";
    let rows = client.query(sql, &[]).await.expect("activity");
    rows.iter().filter_map(|row| Pid::from_raw(row.get(0))).collect()
}

/// Lets the stopped processes go on, whatever happens to the test.
struct Frozen(Vec<Pid>);

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}

/// Freezes the relay's backends while they rest. One that is frozen in the middle of a statement would hold
/// its locks for as long, which no firewall does.
async fn freeze(client: &Client) -> Frozen {
    eventually("its connections rest", WAIT, || async {
        let frozen = Frozen(backends(client).await);
        assert!(!frozen.0.is_empty(), "the relay has connections");
        frozen.0.iter().for_each(|pid| kill_process(*pid, Signal::STOP).expect("the backend is ours"));
        let stands = |pid: &Pid| {
            let stat =
                std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        eventually("they stand still", WAIT, || async { frozen.0.iter().all(stands).then_some(()) }).await;
        let pids: Vec<i32> = frozen.0.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        let busy = "select count(*) from pg_stat_activity where pid = any ($1) and state <> 'idle'";
        let busy: i64 = client.query_one(busy, &[&pids]).await.expect("activity").get(0);
        (busy == 0).then_some(frozen)
    })
    .await
}

/// Connections that stay open and never answer again, while new ones work: a firewall forgot them (G7). On a
/// server of its own: one that waits for all its backends would wait for the frozen ones too.
#[tokio::test(flavor = "multi_thread")]
async fn g7_connections_that_never_answer_are_given_up() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let database = require_service!(TestDatabase::create_on(&server).await);
    let scene = Scene::on(database, SHORT_LEASE).await;
    let relay = scene.site.start("direct.toml");
    crate::load::append(&scene.client, "orders", 100).await;
    await_all(&scene.client, &scene.site.file, "before").await;
    await_settled(&scene.client).await;
    let frozen = freeze(&scene.client).await;
    crate::load::append(&scene.client, "orders", 100).await;
    let started = Instant::now();
    await_all(&scene.client, &scene.site.file, "after the connections went silent").await;
    eprintln!("silent connections: delivered again after {:?}", started.elapsed());
    await_settled(&scene.client).await;
    drop(frozen);
    scene.finish("silent connections").await;
    relay.stop().await;
}
