//! Two things of one relay at the same time: a page that was fetched ahead beside a settlement, a look at the
//! deferred beside a settlement, a slow read beside the ring. And two relays, when routes change.

use crate::fixture::PostgresFixture;
use crate::three_rules::plan;
use posthaste::route::{Filter, Pattern};
use posthaste::store::{
    Deferral, Detained, Due, DueQuery, ErrorClass, JoinPlan, LaneId, Lease, PageLimit, Reason, Settlement,
    SinkPlan, StartAt, Store, StoreError,
};
use posthaste_postgres::{PostgresConfig, PostgresStore};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::conformance::store::StoreFixture;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

const WAIT: Duration = Duration::from_secs(90);
const WIDE: PageLimit = PageLimit { events: 1_000, bytes: 1 << 20 };

async fn join(config: PostgresConfig, relay: &str, lanes: u16) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(config).await.expect("the store connects"));
    store.join(&plan(relay, lanes)).await.expect("join");
    store
}

async fn take(store: &Arc<dyn Store>, lane: i16) -> Arc<dyn Lease> {
    let id = LaneId { sink: "s".into(), lane };
    store.take(&id).await.expect("the store answers").expect("the lane is free")
}

fn through(page: u64) -> Settlement {
    Settlement { through: Some(page), ..Settlement::default() }
}

/// Waits until a statement of the store that holds this text waits for a lock.
async fn blocked(client: &Client, text: &str) {
    eventually("a statement waits for a lock", WAIT, || async {
        let sql = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'posthaste' \
                   and query like '%' || $1 || '%' and datname = current_database()";
        (!client.query(sql, &[&text]).await.expect("activity").is_empty()).then_some(())
    })
    .await;
}

/// G7: lanes that have no room, or are paused, do not ask for the page that was fetched ahead for them.
/// However many they are, the others find a connection.
#[tokio::test(flavor = "multi_thread")]
async fn g7_pages_that_wait_to_be_asked_for_hold_no_connection() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let store = join(PostgresConfig { connections_max: 2, ..fixture.config() }, "a", 8).await;
    let append = "insert into posthaste.outbox (topic, key, payload) select 't', 'k' || g, 'x' from generate_series(1, 800) g";
    client.batch_execute(append).await.expect("an append");
    let mut in_hand = Vec::new();
    for lane in 0..8 {
        let lease = tokio::time::timeout(WAIT, take(&store, lane)).await.expect("the pool is starved");
        let read = lease.read(PageLimit { events: 10, ..WIDE });
        let page = tokio::time::timeout(WAIT, read).await.expect("the pool is starved").expect("a read");
        assert_eq!(page.events.len(), 10, "full, so the next one is fetched ahead");
        in_hand.push((page.number, lease));
    }
    for (page, lease) in &in_hand {
        let settlement = through(*page);
        let settled = tokio::time::timeout(WAIT, lease.settle(&settlement)).await;
        settled.expect("the pool is starved").expect("settled");
    }
}

/// G3: a look at the deferred runs while a settlement puts the first event of a key aside, and sees nothing
/// of it. What is read after the settlement waits behind that event all the same.
#[tokio::test(flavor = "multi_thread")]
async fn g3_a_look_beside_a_settlement_does_not_unhold_its_keys() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    // Who is in a transaction sees others as they were at its first look.
    let (client, other) = (fixture.connect().await, fixture.connect().await);
    let store = join(fixture.config(), "a", 1).await;
    let lease = take(&store, 0).await;
    let append = "select posthaste.append('t', 'x'::text, 'k')";
    client.batch_execute(append).await.expect("an append");
    let page = eventually("the event", WAIT, || async {
        let page = lease.read(WIDE).await.expect("a read");
        (!page.events.is_empty()).then_some(page)
    })
    .await;
    let deferral = Deferral {
        reason: Reason::Retry,
        due: Due::In(Duration::from_secs(600)),
        attempts: 1,
        class: Some(ErrorClass::Transient),
        code: None,
        error: Some("no".to_owned()),
        route: "r".into(),
        destination: "d".to_owned(),
        holds: true,
        holds_when_dead: false,
    };
    let event = page.events[0].clone();
    client.batch_execute("begin; lock table posthaste.deferred in share mode").await.expect("a lock");
    let settling = tokio::spawn({
        let lease = Arc::clone(&lease);
        let settlement = Settlement { deferred: vec![(event, deferral)], ..through(page.number) };
        async move { lease.settle(&settlement).await }
    });
    blocked(&other, "deferred").await;
    let query = DueQuery { events: 10, bytes: 1 << 20, ..DueQuery::default() };
    let due = lease.due(query).await.expect("a look");
    assert!(due.events.is_empty(), "it is not there yet");
    client.batch_execute("commit").await.expect("the lock is gone");
    settling.await.expect("no panic").expect("settled");
    client.batch_execute(append).await.expect("another of the key");
    let page = eventually("the next event", WAIT, || async {
        let page = lease.read(WIDE).await.expect("a read");
        (!page.events.is_empty()).then_some(page)
    })
    .await;
    assert_eq!(page.detained, [(0, Detained::Behind)], "it waits behind the first");
}

/// G2: a read leaves a closing segment out, and is answered when that segment has been truncated and turned
/// into again. It must not move past what it did not look at.
#[tokio::test(flavor = "multi_thread")]
async fn g2_a_read_that_was_answered_too_late_skips_nothing() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let (client, other) = (fixture.connect().await, fixture.connect().await);
    // Two lanes: a lane that does not read everything moves on over what it does not find.
    let store = join(fixture.config(), "a", 2).await;
    let leases = [take(&store, 0).await, take(&store, 1).await];
    client
        .batch_execute("update posthaste.segments set closing = true where segment = 2")
        .await
        .expect("closing");
    store.roll(&[]).await.expect("the relay hears of it");
    let truncated =
        "update posthaste.segments set closing = false, truncated_at = clock_timestamp() where segment = 2";
    client.batch_execute(truncated).await.expect("truncated");
    client
        .batch_execute("begin; lock table posthaste.outbox_1 in access exclusive mode")
        .await
        .expect("a lock");
    let reading: Vec<_> = leases
        .iter()
        .map(|lease| {
            let lease = Arc::clone(lease);
            tokio::spawn(async move { lease.read(WIDE).await })
        })
        .collect();
    blocked(&other, "The usual read").await;
    eventually("the segment may be used again", WAIT, || async {
        let sql = "select 1 from posthaste.segments where segment = 2 and truncated_at < clock_timestamp() - interval '5 s'";
        (!other.query(sql, &[]).await.expect("a look").is_empty()).then_some(())
    })
    .await;
    let append =
        "select setval('posthaste.outbox_segment', 2, true); select posthaste.append('t', 'x'::text, 'k')";
    other.batch_execute(append).await.expect("an append to the segment");
    client.batch_execute("commit").await.expect("the lock is gone");
    let mut found = 0;
    for read in reading {
        found += read.await.expect("no panic").map_or(0, |page| page.events.len());
    }
    for lease in &leases {
        found += lease.read(WIDE).await.expect("a read").events.len();
    }
    assert_eq!(found, 1, "the event is read, once");
}

/// Two sinks; the second takes these topics, the first the others among `t` and `u`.
fn routed(relay: &str, first: &[&str], second: &[&str]) -> JoinPlan {
    let any = |topics: &[&str]| Filter::Any(topics.iter().map(|topic| Pattern::new(*topic)).collect());
    let sink =
        |name: &str, topics| SinkPlan { name: name.into(), filter: any(topics), start_at: StartAt::Auto };
    JoinPlan {
        sinks: vec![sink("s", first), sink("x", second)],
        routes: format!("{first:?} {second:?}"),
        ..plan(relay, 1)
    }
}

async fn connect(fixture: &PostgresFixture, plan: &JoinPlan) -> Arc<dyn Store> {
    let store = PostgresStore::connect(fixture.config()).await.expect("the store connects");
    store.join(plan).await.expect("join");
    Arc::new(store)
}

async fn lane_of(store: &Arc<dyn Store>, sink: &str) -> Arc<dyn Lease> {
    let id = LaneId { sink: sink.into(), lane: 0 };
    store.take(&id).await.expect("the store answers").expect("the lane is free")
}

/// G2, G4: a relay without a heart still reads by its former routes when others begin. It must not move a
/// sink's cursor past what is that sink's by now.
#[tokio::test(flavor = "multi_thread")]
async fn g2_g4_whoever_reads_by_former_routes_is_fenced_when_others_join() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let old = connect(&fixture, &routed("a", &["t"], &["u"])).await;
    let lease = lane_of(&old, "x").await;
    fixture.kill("a").await;
    let new = connect(&fixture, &routed("b", &["u"], &["t"])).await;
    client.batch_execute("select posthaste.append('t', 'x'::text)").await.expect("an append");
    let page = lease.read(WIDE).await.expect("a read");
    assert!(page.events.is_empty(), "not what it knows as its own");
    let settled = lease.settle(&through(page.number)).await;
    let found = lane_of(&new, "x").await.read(WIDE).await.expect("a read").events.len();
    assert_eq!(found, 1, "the event is read by its new sink");
    assert!(matches!(settled, Err(StoreError::LeaseLost(_))), "{settled:?}");
}

/// G2: a topic goes over to a sink that is new. What is appended while the relay joins is read by one of the
/// two.
#[tokio::test(flavor = "multi_thread")]
async fn g2_what_is_appended_while_a_topic_goes_over_to_a_new_sink_is_read() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let (client, other) = (fixture.connect().await, fixture.connect().await);
    let mut before = routed("a", &["t"], &[]);
    before.sinks.pop();
    connect(&fixture, &before).await.leave().await.expect("it leaves");
    client.batch_execute("begin; lock table posthaste.receipts in share mode").await.expect("a lock");
    let joining = tokio::spawn({
        let (config, after) = (fixture.config(), routed("a", &["u"], &["t"]));
        async move {
            let store = PostgresStore::connect(config).await.expect("the store connects");
            store.join(&after).await.map(|()| store)
        }
    });
    blocked(&other, "receipts").await;
    other.batch_execute("select posthaste.append('t', 'x'::text)").await.expect("an append");
    client.batch_execute("commit").await.expect("the lock is gone");
    let store: Arc<dyn Store> = Arc::new(joining.await.expect("no panic").expect("joined"));
    let mut found = 0;
    for sink in ["s", "x"] {
        found += lane_of(&store, sink).await.read(WIDE).await.expect("a read").events.len();
    }
    assert!(found >= 1, "nobody reads it");
}
