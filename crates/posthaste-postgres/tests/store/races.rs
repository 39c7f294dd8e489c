//! Two things of one relay at the same time: a page that was fetched ahead beside a settlement, a look at the
//! deferred beside a settlement, a slow read beside the ring.

use crate::fixture::PostgresFixture;
use crate::three_rules::plan;
use posthaste::store::{
    Deferral, Detained, Due, DueQuery, ErrorClass, LaneId, Lease, PageLimit, Reason, Settlement, Store,
};
use posthaste_postgres::{PostgresConfig, PostgresStore};
use posthaste_testkit::conformance::eventually;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

const WAIT: Duration = Duration::from_secs(20);
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

/// G7: lanes that have no room, or are paused, do not ask for the page that was fetched ahead for them. However
/// many they are, the others find a connection.
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

/// G3: a look at the deferred runs while a settlement puts the first event of a key aside, and sees nothing of
/// it. What is read after the settlement waits behind that event all the same.
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

/// G2: a read leaves a closing segment out, and is answered when that segment has been truncated and turned into
/// again. It must not move past what it did not look at.
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
