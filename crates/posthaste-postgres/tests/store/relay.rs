//! The production relay on the production store, in this process: what grows must not, what is late must
//! come, what is old must go.

use crate::fixture::PostgresFixture;
use posthaste::Limits;
use posthaste::admin::{Actor, Admin, AdminError, DeadAct, DeadFilter};
use posthaste::clock::SystemClock;
use posthaste::relay::{DrainOutcome, RelayHandle, RelayPlan, RelaySettings, SinkEntry, start};
use posthaste::retry::RetryPolicy;
use posthaste::route::{Pattern, Route, RouteTable};
use posthaste::sink::{Capabilities, Failure, Message, Ordering, Sink, Verdict};
use posthaste::store::StartAt;
use posthaste_postgres::{PostgresConfig, PostgresStore, Retention};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::services::{Postgres, PostgresOptions, TestDatabase, Version};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

const WAIT: Duration = Duration::from_secs(120);

/// What arrived, in order. Keys that begin with `bad` fail.
#[derive(Default)]
struct Recorder {
    arrived: Mutex<Vec<(i64, Option<String>)>>,
    seen: Mutex<HashSet<i64>>,
}

#[async_trait::async_trait]
impl Sink for Recorder {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordering: Ordering::Call, dedupes: false, payload_bytes_max: None }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let (mut arrived, mut seen) =
            (self.arrived.lock().expect("no panic"), self.seen.lock().expect("no panic"));
        let verdict = |message: &Message| {
            let key = message.stored.event.key.clone();
            if key.as_deref().is_some_and(|key| key.starts_with("bad")) {
                return Verdict::Retry(Failure::of_event("test.bad", "bad key"));
            }
            arrived.push((message.stored.seq, key));
            seen.insert(message.stored.seq);
            Verdict::Delivered
        };
        messages.iter().map(verdict).collect()
    }
}

impl Recorder {
    fn distinct(&self) -> usize {
        self.seen.lock().expect("no panic").len()
    }

    fn deliveries(&self) -> usize {
        self.arrived.lock().expect("no panic").len()
    }

    /// First deliveries of each key, in the order they came.
    fn assert_order(&self) {
        let (mut seen, mut last) = (HashSet::new(), HashMap::new());
        for (seq, key) in self.arrived.lock().expect("no panic").iter().filter(|(seq, _)| seen.insert(*seq)) {
            let Some(key) = key else { continue };
            let before = last.insert(key.clone(), *seq);
            assert!(before.is_none_or(|before| before < *seq), "{key}: {before:?} before {seq}");
        }
    }
}

struct Relays {
    config: PostgresConfig,
    recorder: Arc<Recorder>,
    settings: RelaySettings,
    retry: RetryPolicy,
    routes: Vec<Route>,
    count: u32,
}

impl Relays {
    fn new(fixture: &PostgresFixture) -> Self {
        let settings = RelaySettings { heartbeat_ms: 100, ..RelaySettings::default() };
        let retry = RetryPolicy::default();
        Self {
            config: fixture.config(),
            recorder: Arc::default(),
            settings,
            retry,
            routes: vec![Route::everything_to("s")],
            count: 0,
        }
    }

    async fn start(&mut self) -> RelayHandle {
        self.count += 1;
        let store = PostgresStore::connect(self.config.clone()).await.expect("the store connects");
        let with_retry = |route: &Route| Route { retry: self.retry, ..route.clone() };
        let routes = RouteTable::new(self.routes.iter().map(with_retry).collect());
        let sink: Arc<dyn Sink> = Arc::clone(&self.recorder) as _;
        let plan = RelayPlan {
            host: "host".into(),
            outbox: "test".into(),
            service: "test".into(),
            relay: format!("relay-{}", self.count).into(),
            store: Arc::new(store),
            sinks: vec![SinkEntry {
                name: "s".into(),
                sink,
                start_at: StartAt::Earliest,
                classes: Default::default(),
            }],
            routes: routes.clone(),
            limits: Limits::default(),
            lanes: None,
        };
        let settings = watch::channel(self.settings.clone()).1;
        start(plan, settings, watch::channel(routes).1, Arc::new(SystemClock))
    }
}

async fn server() -> Option<(Postgres, PostgresFixture)> {
    let server = posthaste_testkit::services::require(
        Postgres::start(Version::tested(), &PostgresOptions::default()).await,
    )?;
    let database = TestDatabase::create_on(&server).await.expect("a database");
    let fixture = PostgresFixture::on(database).await;
    Some((server, fixture))
}

/// F1, F18: a large transaction stays open while others pass, with tiny pages and a relay that is killed
/// again and again. Nobody waits for it, nothing of it is lost, and a kill repeats a window at most.
#[tokio::test(flavor = "multi_thread")]
async fn f18_a_huge_transaction_is_neither_lost_nor_waited_for() {
    let Some((_server, fixture)) = server().await else { return };
    let (large, small) = (40_000, 10_000);
    let writer = fixture.connect().await;
    let append = |prefix: &str, n: i32| {
        format!(
            "insert into posthaste.outbox (topic, key, payload) select 't', '{prefix}' || g % 50, 'x' from generate_series(1, {n}) g"
        )
    };
    writer.batch_execute(&format!("begin; {}", append("large-", large))).await.expect("the large one");
    let mut relays = Relays::new(&fixture);
    relays.settings.page_events_max = 100;
    relays.settings.max_unsettled_events = 400;
    let recorder = Arc::clone(&relays.recorder);
    let relay = relays.start().await;
    for _ in 0..10 {
        fixture.connect().await.batch_execute(&append("small-", small / 10)).await.expect("a small one");
    }
    eventually("the small ones pass", WAIT, || async {
        (recorder.distinct() == small as usize).then_some(())
    })
    .await;
    drop(relay);
    writer.batch_execute("commit").await.expect("commit");
    let (all, mut kills) = ((large + small) as usize, 1);
    while recorder.distinct() < all {
        let relay = relays.start().await;
        let before = recorder.distinct();
        let goal = (before + 9_000).min(all);
        eventually("it goes on", WAIT, || async { (recorder.distinct() >= goal).then_some(()) }).await;
        drop(relay);
        kills += 1;
    }
    recorder.assert_order();
    let duplicates = recorder.deliveries() - all;
    println!("{kills} kills, {duplicates} duplicates");
    assert!(duplicates <= kills * 400, "a kill repeats a window at most: {duplicates} after {kills}");
}

/// F80, F81: the ring turns and old segments are truncated under load, while a long transaction holds an
/// old segment open. Appends never fail, nothing is lost, and the straggler's segment waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn f81_segments_turn_and_are_truncated_under_load_and_a_straggler_is_not_lost() {
    let Some((_server, fixture)) = server().await else { return };
    let straggler = fixture.connect().await;
    straggler
        .batch_execute("begin; select posthaste.append('t', 'x'::text, 'straggler')")
        .await
        .expect("append");
    let mut relays = Relays::new(&fixture);
    relays.settings.sweep_interval_ms = 20;
    let short = Duration::from_millis(200);
    relays.config.retention = Retention { events: short, turn_after: short, ..Retention::default() };
    let recorder = Arc::clone(&relays.recorder);
    let relay = relays.start().await;
    let (client, end) = (fixture.connect().await, Instant::now() + Duration::from_secs(6));
    let (mut appended, mut slowest) = (0, Duration::ZERO);
    while Instant::now() < end {
        let started = Instant::now();
        client
            .batch_execute("select posthaste.append('t', 'x'::text, 'k')")
            .await
            .expect("an append never fails");
        slowest = slowest.max(started.elapsed());
        appended += 1;
    }
    let turns =
        "select (select turn from posthaste.ring), (select count(*) from posthaste.outbox where segment = 1)";
    let row = client.query_one(turns, &[]).await.expect("the ring");
    println!("{appended} appended, slowest {slowest:?}, turn {}", row.get::<_, i64>(0));
    assert!(row.get::<_, i64>(0) > 1, "the ring turned");
    // Its insert is in segment 1, which must not be truncated before it has ended.
    straggler.batch_execute("commit").await.expect("commit");
    eventually("everything arrives", WAIT, || async { (recorder.distinct() == appended + 1).then_some(()) })
        .await;
    eventually("segment 1 is truncated at last", WAIT, || async {
        let old = "select not exists (select from posthaste.outbox_1 where seq < 100) and (select turn from posthaste.ring) > 8";
        client.batch_execute("select posthaste.append('t', 'x'::text, 'k')").await.expect("append");
        client.query_one(old, &[]).await.expect("the ring").get::<_, bool>(0).then_some(())
    })
    .await;
    let notes = "select count(*) from posthaste.segments where audit_note is not null";
    assert_eq!(
        client.query_one(notes, &[]).await.expect("audit").get::<_, i64>(0),
        0,
        "every audit balances"
    );
    recorder.assert_order();
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// F51, F55: very many deferred events on as many keys. A fresh relay starts in bounded memory, fresh
/// events pass, and the next event of a deferred key is still held.
#[tokio::test(flavor = "multi_thread")]
async fn f55_many_deferred_events_hold_their_keys_and_cost_fresh_ones_nothing() {
    let Some((_server, fixture)) = server().await else { return };
    let many = 50_000;
    let client = fixture.connect().await;
    let mut relays = Relays::new(&fixture);
    relays.retry = RetryPolicy { initial_ms: 300_000, max_attempts: 1_000, ..RetryPolicy::default() };
    let recorder = Arc::clone(&relays.recorder);
    let relay = relays.start().await;
    let bad = format!(
        "insert into posthaste.outbox (topic, key, payload) select 't', 'bad-' || g, 'x' from generate_series(1, {many}) g"
    );
    client.batch_execute(&bad).await.expect("append");
    let deferred = "select count(*) from posthaste.deferred";
    eventually("all are deferred", WAIT, || async {
        (client.query_one(deferred, &[]).await.expect("count").get::<_, i64>(0) == many).then_some(())
    })
    .await;
    drop(relay);
    let relay = relays.start().await;
    let next = "insert into posthaste.outbox (topic, key, payload) select 't', case when g % 2 = 0 then 'bad-' || g else 'good-' || g end, 'x'
                  from generate_series(1, 2000) g";
    client.batch_execute(next).await.expect("append");
    eventually("fresh events pass", WAIT, || async { (recorder.distinct() == 1_000).then_some(()) }).await;
    let held = "select count(*) from posthaste.deferred where reason = 'held'";
    eventually("the others are held", WAIT, || async {
        (client.query_one(held, &[]).await.expect("count").get::<_, i64>(0) == 1_000).then_some(())
    })
    .await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}

/// G2: a change of routes skips nothing that waited, and what nobody takes any more can be seen and sent on.
#[tokio::test(flavor = "multi_thread")]
async fn g2_moving_a_topic_between_sinks_skips_nothing() {
    let Some((_server, fixture)) = server().await else { return };
    let client = fixture.connect().await;
    let route = |sink: &str, topics: &[&str]| Route {
        topics: topics.iter().map(|topic| Pattern::new(*topic)).collect(),
        ..Route::everything_to(sink)
    };
    let mut relays = Relays::new(&fixture);
    relays.routes = vec![route("s", &["posthaste.orders.*", "b.*"])];
    let relay = relays.start().await;
    let append =
        "select posthaste.append('posthaste.orders.placed', 'x'::text), posthaste.append('b.x', 'x'::text)";
    client.batch_execute(append).await.expect("append");
    let recorder = Arc::clone(&relays.recorder);
    // A pattern that holds the schema's default name is a pattern like any other.
    eventually("both arrive", WAIT, || async { (recorder.distinct() == 2).then_some(()) }).await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
    client.batch_execute(append).await.expect("append while nobody reads");
    relays.routes = vec![route("s", &["b.*"])];
    let relay = relays.start().await;
    eventually("b arrives", WAIT, || async { (recorder.distinct() == 3).then_some(()) }).await;
    let dead = "select count(*) from posthaste.dead_letters where error_code = 'route.none'";
    eventually("the other one is visibly dead", WAIT, || async {
        (client.query_one(dead, &[]).await.expect("count").get::<_, i64>(0) >= 1).then_some(())
    })
    .await;
    let filter = DeadFilter { all: true, ..DeadFilter::default() };
    let actor = Actor::new("test", "route");
    let refused = fixture.admin().await.dead_act(&filter, DeadAct::Replay, &actor, 10).await;
    assert!(matches!(refused, Err(AdminError::Conflict { .. })), "no route yet: {refused:?}");
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
    relays.routes = vec![route("s", &["b.*", "posthaste.orders.*"])];
    let relay = relays.start().await;
    eventually("the replay is accepted", WAIT, || async {
        fixture.admin().await.dead_act(&filter, DeadAct::Replay, &actor, 10).await.ok()
    })
    .await;
    eventually("it arrives after all", WAIT, || async { (recorder.distinct() == 4).then_some(()) }).await;
    assert_eq!(relay.drain().await, DrainOutcome::Clean);
}
