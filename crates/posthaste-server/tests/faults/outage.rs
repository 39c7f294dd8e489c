//! A broker that is not there: refused, swallowed, half deaf, wrong password, slow.
//!
//! Each outage happens under a steady load to two sinks, one behind a bad line, one to a file. Events for
//! the broker wait without losing an attempt (F50), the other sink does not notice (F30), and delivery
//! resumes by itself within 5 s.

use crate::broker::{Login, make_stream, watch_stream};
use crate::ledger::{Deliveries, assert_key_order};
use crate::load::{Load, append, connect};
use crate::relay::{Relay, WAIT};
use crate::rig::{Site, assert_blameless, await_all, await_settled, blame, config, count};
use crate::scale::{outage_time, sized};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Nats, NatsOptions, Proxy, TestDatabase};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// Events a second.
fn rate() -> i64 {
    sized(600, 1_000)
}

/// What the other sink's latency is compared with.
const BEFORE: Duration = Duration::from_secs(2);
const RESUME_MAX: Duration = Duration::from_secs(5);

/// The promise for a quiet machine is asserted at full size: the 99th percentile, and what is always allowed.
/// A machine that does other things too stands still now and then, so there it is the median: an outage that
/// came through would move it by more than this.
fn latency() -> (usize, Duration) {
    sized((50, Duration::from_millis(500)), (99, Duration::from_millis(50)))
}

/// For a machine that does other things too.
fn slack() -> Duration {
    Duration::from_secs(sized(25, 3))
}

const SINKS: &str = "[sinks.file]\ntype = \"stdout\"\nstart_at = \"earliest\"\n\
    [[route]]\ntopics = [\"*\"]\nsinks = [\"nats\", \"file\"]\n\
    [sinks.nats]\ntype = \"nats\"\nstart_at = \"earliest\"\n";

struct Scene {
    site: Site,
    database: TestDatabase,
    client: Client,
    proxy: Proxy,
    arrived: Deliveries,
    _nats: Nats,
}

impl Scene {
    async fn set(login: Login<'_>) -> Option<Self> {
        let database = require_service!(TestDatabase::create().await, None);
        let options =
            login.map_or_else(NatsOptions::default, |(user, word)| NatsOptions::default().user(user, word));
        let nats = require_service!(Nats::start(&options).await, None);
        make_stream(nats.addr(), login, "EVENTS", &["orders.>"]);
        let arrived = watch_stream(nats.addr(), login, "EVENTS");
        let (proxy, url) = Proxy::start_before(&nats.url()).await.expect("a proxy");
        let site = Site::new();
        let user = login.map_or_else(String::new, |(user, word)| {
            format!("user = \"{user}\"\npassword_file = \"{}\"\n", site.write("password", word))
        });
        let rest = format!("{SINKS}url = \"{url}\"\n{user}");
        site.write("posthaste.toml", &config(&database.url(), "", "", &rest));
        site.run("posthaste.toml", &["migrate", "up"]).ok();
        let client = connect(&database.url()).await;
        Some(Self { site, database, client, proxy, arrived, _nats: nats })
    }

    fn relay(&self) -> Relay {
        self.site.start("posthaste.toml")
    }

    /// A percentile of the other sink's latency over this time.
    async fn latency_over(&self, time: Duration) -> Duration {
        let from = self.site.file.len();
        tokio::time::sleep(time).await; // pace: the load runs
        self.site.file.latency_since(from, latency().0)
    }

    async fn await_delivery(&self, what: &str) -> Duration {
        let (started, before) = (Instant::now(), self.arrived.len());
        let more = || async { (self.arrived.len() > before).then_some(()) };
        eventually(what, RESUME_MAX + slack(), more).await;
        started.elapsed()
    }

    /// The whole story of an outage that `begin` makes and `end` mends.
    async fn play(&self, what: &str, begin: impl AsyncFn(), end: impl AsyncFn()) {
        let relay = self.relay();
        let load = Load::start(&self.database.url(), &["orders.placed"], rate()).await;
        self.await_delivery("the first delivery").await;
        let before = self.latency_over(BEFORE).await;
        begin().await;
        let during = self.latency_over(outage_time()).await;
        let (dead, tried) = blame(&self.client).await;
        assert_blameless(dead, tried, what);
        end().await;
        let resumed = self.await_delivery("delivery resumes").await;
        eprintln!(
            "{what}: the other sink's latency {before:?}, in the outage {during:?}; resumed after {resumed:?}"
        );
        let (percent, floor) = latency();
        assert!(
            during <= (2 * before).max(floor),
            "F30: {what}: the latency of {percent} % went from {before:?} to {during:?}"
        );
        load.stop().await;
        self.finish(what).await;
        relay.stop().await;
    }

    async fn finish(&self, what: &str) {
        let log = await_all(&self.client, &self.arrived, what).await;
        await_all(&self.client, &self.site.file, what).await;
        await_settled(&self.client).await;
        assert_key_order(&log, &self.arrived, what);
        assert_key_order(&log, &self.site.file, what);
        let (dead, tried) = blame(&self.client).await;
        assert_blameless(dead, tried, what);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn f50_refused() {
    let Some(scene) = Scene::set(None).await else { return };
    let proxy = &scene.proxy;
    let refuse = async || {
        proxy.refuse().await;
        proxy.cut().await;
    };
    scene.play("refused", refuse, async || proxy.pass().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn f50_f30_black_holed() {
    let Some(scene) = Scene::set(None).await else { return };
    let proxy = &scene.proxy;
    scene.play("black-holed", async || proxy.black_hole().await, async || proxy.pass().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn f50_half_open() {
    let Some(scene) = Scene::set(None).await else { return };
    let proxy = &scene.proxy;
    scene.play("half-open", async || proxy.half_open().await, async || proxy.pass().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn f50_slow() {
    let Some(scene) = Scene::set(None).await else { return };
    let proxy = &scene.proxy;
    let slow = async || proxy.delay(Duration::from_millis(700)).await;
    scene.play("slow", slow, async || proxy.pass().await).await;
}

/// The password in the file becomes wrong and the server asks for it again; then it becomes right.
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn f50_wrong_password() {
    let Some(scene) = Scene::set(Some(("relay", "right"))).await else { return };
    let wrong = async || {
        scene.site.write("password", "wrong");
        scene.proxy.cut().await;
    };
    scene.play("wrong password", wrong, async || drop(scene.site.write("password", "right"))).await;
}

/// A subject that no stream takes waits by itself; the other one flows; a stream mends it (F30, F40).
#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "nats"), ignore = "it names NATS: --features nats")]
async fn f30_f40_one_dead_destination() {
    let Some(scene) = Scene::set(None).await else { return };
    let relay = scene.relay();
    append(&scene.client, "lost.found", 300).await;
    let load = Load::start(&scene.database.url(), &["orders.placed"], rate()).await;
    eventually("the good destination flows", WAIT, || async { (scene.arrived.len() > 500).then_some(()) })
        .await;
    load.stop().await;
    let waiting = "select count(*) from posthaste.deferred where sink = 'nats' and attempts = 0 and topic = 'lost.found'";
    eventually("the others wait", WAIT, || async {
        (count(&scene.client, waiting).await == 300).then_some(())
    })
    .await;
    let (dead, tried) = blame(&scene.client).await;
    assert_blameless(dead, tried, "dead destination");
    make_stream(scene._nats.addr(), None, "LOST", &["lost.>"]);
    let found = watch_stream(scene._nats.addr(), None, "LOST");
    let since = Instant::now();
    eventually("what waited arrives", WAIT, || async { (found.len() >= 300).then_some(()) }).await;
    eprintln!("dead destination: everything arrived {:?} after the stream was made", since.elapsed());
    found.all().into_iter().for_each(|delivery| scene.arrived.push(delivery));
    scene.finish("dead destination").await;
    relay.stop().await;
}
