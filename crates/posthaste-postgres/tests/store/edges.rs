//! Places where something goes wrong between two steps of the store: a flush that fails, a turn that was
//! torn, a pool that is used up, a former owner that froze. One case each, built by hand.

use crate::fixture::PostgresFixture;
use crate::three_rules::plan;
use posthaste::store::{
    Death, Deferral, Due, ErrorClass, LaneId, Lease, Page, PageLimit, Reason, Settlement, Store, Swept,
};
use posthaste_postgres::{PostgresConfig, PostgresStore, Retention};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::services::{Postgres, PostgresOptions, TestDatabase, Version, require};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

const WAIT: Duration = Duration::from_secs(60);
const WIDE: PageLimit = PageLimit { events: 1_000, bytes: 1 << 20 };
const APPEND: &str = "select posthaste.append('t', 'x'::text, 'k')";

async fn join(config: PostgresConfig, relay: &str, lanes: u16) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(config).await.expect("the store connects"));
    store.join(&plan(relay, lanes)).await.expect("join");
    store
}

async fn take(store: &Arc<dyn Store>, lane: i16) -> Arc<dyn Lease> {
    let id = LaneId { sink: "s".into(), lane };
    store.take(&id).await.expect("the store answers").expect("the lane is free")
}

/// Reads until a page holds something.
async fn read(lease: &Arc<dyn Lease>) -> Page {
    eventually("there is something to read", WAIT, || async {
        let page = lease.read(WIDE).await.expect("a read");
        (!page.events.is_empty()).then_some(page)
    })
    .await
}

fn through(page: u64) -> Settlement {
    Settlement { through: Some(page), ..Settlement::default() }
}

async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.expect("a number").get(0)
}

/// F7, G2: a flush before publishing that fails must not lose the page that was read. Whoever reads again
/// gets it.
#[tokio::test(flavor = "multi_thread")]
async fn f7_g2_a_flush_that_fails_loses_no_page() {
    // The WAL writer sleeps: what an asynchronous application commits stays unflushed.
    let options = PostgresOptions::default()
        .setting("wal_writer_delay", "10s")
        .setting("wal_writer_flush_after", "1GB")
        .scram_user("relay", "r1");
    let Some(server) = require(Postgres::start(Version::tested(), &options).await) else { return };
    let database = TestDatabase::create_on(&server).await.expect("a database");
    let fixture = PostgresFixture::on(database).await;
    let client = fixture.connect().await;
    let flush = if Version::tested() < Version::V17 { "" } else { ", boolean" }; // which 17 added
    let right = format!("on function pg_catalog.pg_logical_emit_message(boolean, text, text{flush})");
    let forbid = format!("grant posthaste_relay to relay; revoke execute {right} from public");
    client.batch_execute(&forbid).await.expect("rights");
    let name = fixture.config().url.rsplit('/').next().expect("a database").to_owned();
    let config = PostgresConfig {
        flush_before_publish: true,
        ..PostgresConfig::new(server.url_for(&name, "relay:r1"))
    };
    let store = join(config, "a", 1).await;
    let lease = take(&store, 0).await;
    client.batch_execute("set synchronous_commit = off").await.expect("a setting");
    let mut failed = 0;
    for n in 0..5 {
        client.batch_execute(APPEND).await.expect("an append");
        let end = "select (pg_current_wal_insert_lsn() - '0/0')::bigint";
        let appended = number(&client, end).await;
        let page = lease.read(WIDE).await;
        // Others flush too, now and then: then none was due.
        let flushed = number(&client, "select (pg_current_wal_flush_lsn() - '0/0')::bigint").await;
        assert!(flushed >= appended || page.is_err(), "the flush was due and could not be done: {n}");
        failed += usize::from(page.is_err());
        if failed > 0 {
            break;
        }
    }
    assert!(failed > 0, "no flush was due: this shows nothing");
    client.batch_execute(&format!("grant execute {right} to public")).await.expect("a right");
    let (mut seen, deadline) = (0, tokio::time::Instant::now() + WAIT);
    let all = number(&client, "select count(*) from posthaste.outbox").await;
    while seen < all {
        seen += lease.read(WIDE).await.expect("a read").events.len() as i64;
        assert!(tokio::time::Instant::now() < deadline, "G2: {seen} of {all} events were handed out");
    }
}

/// One that a failing key holds cannot be put into an index, and waits without holding.
#[tokio::test(flavor = "multi_thread")]
async fn f49_a_key_that_fits_no_index_stops_nothing() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let lease = take(&join(fixture.config(), "a", 1).await, 0).await;
    let long = "insert into posthaste.outbox (topic, key, payload) select 't', string_agg(md5(g::text || n::text), ''), 'x' \
                from generate_series(1, 500) g, generate_series(1, 2) n group by n";
    client.batch_execute(long).await.expect("an append");
    let mut page = read(&lease).await;
    let (second, first) = (page.events.pop().expect("two"), page.events.pop().expect("two"));
    let deferral = Deferral {
        reason: Reason::Retry,
        due: Due::In(Duration::ZERO),
        attempts: 1,
        class: None,
        code: None,
        error: None,
        route: "r".into(),
        destination: "d".to_owned(),
        holds: true,
        holds_when_dead: true,
    };
    let death = Death {
        attempts: 1,
        class: ErrorClass::Permanent,
        code: "no".to_owned(),
        error: "no".to_owned(),
        route: "r".into(),
        holds: true,
    };
    let settlement =
        Settlement { deferred: vec![(first, deferral)], dead: vec![(second, death)], ..through(page.number) };
    lease.settle(&settlement).await.expect("settled");
    assert_eq!(lease.given_up(), 0);
    let counts = "select (select count(*) from posthaste.deferred) * 10 + (select count(*) from posthaste.dead_letters)";
    assert_eq!(number(&client, counts).await, 11);
}

/// G7: settlements whose outcome was unknown ask whose receipt is there. They must not wait for another
/// connection while they hold one.
#[tokio::test(flavor = "multi_thread")]
async fn g7_repeated_settlements_do_not_starve_the_pool() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let store = join(PostgresConfig { connections_max: 2, ..fixture.config() }, "a", 8).await;
    let mut leases = Vec::new();
    for lane in 0..8 {
        leases.push(take(&store, lane).await);
    }
    let append = "insert into posthaste.outbox (topic, key, payload) select 't', 'k' || g, 'x' from generate_series(1, 400) g";
    client.batch_execute(append).await.expect("an append");
    let mut read_by = Vec::new();
    for lease in leases {
        read_by.push((read(&lease).await, lease));
    }
    let mut settling = Vec::new();
    for (page, lease) in read_by {
        // As if an earlier try had been committed without an answer.
        let written = "insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot) \
                       select sink, lane, n + 1, epoch, 'settle', mark, position, snapshot from posthaste.receipts \
                       where sink = 's' and lane = $1 order by n desc limit 1";
        client.execute(written, &[&lease.id().lane]).await.expect("a receipt");
        settling.push(tokio::spawn(async move { lease.settle(&through(page.number)).await }));
    }
    for task in settling {
        let settled = tokio::time::timeout(WAIT, task).await;
        settled.expect("the pool is starved").expect("no panic").expect("harmless when repeated");
    }
}

/// G7: a former owner that froze in the middle of a settlement holds its receipt's number. Whoever takes over
/// waits for that, but not for ever.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_frozen_settlement_holds_up_a_taker_for_seconds_only() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let frozen = fixture.connect().await;
    let store = join(fixture.config(), "a", 1).await;
    let held = "begin; insert into posthaste.receipts (sink, lane, n, epoch, kind, mark, position, snapshot) \
                select sink, lane, n + 1, epoch, 'settle', mark, position, snapshot from posthaste.receipts \
                where sink = 's' and lane = 0 order by n desc limit 1";
    frozen.batch_execute(held).await.expect("an open settlement");
    let id = LaneId { sink: "s".into(), lane: 0 };
    let taken = tokio::time::timeout(WAIT, store.take(&id)).await;
    let error = taken.expect("bounded").map(|_| ()).expect_err("somebody holds the number");
    assert!(error.is_transient(), "{error}");
    frozen.batch_execute("rollback").await.expect("it is gone");
    take(&store, 0).await;
}

/// A cursor is born with a mark that its own snapshot has passed: its first reads scan nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_is_born_with_a_mark_below_its_snapshot() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    client.batch_execute(APPEND).await.expect("an append");
    join(fixture.config(), "a", 4).await;
    let late =
        "select count(*) from posthaste.receipts where kind = 'born' and xid >= pg_snapshot_xmax(snapshot)";
    assert_eq!(number(&client, late).await, 0, "marks that a cursor's own snapshot does not see");
    assert_eq!(number(&client, "select count(*) from posthaste.receipts where kind = 'born'").await, 4);
}

/// A ring that wants to turn at every sweep and keeps nothing.
fn hasty(fixture: &PostgresFixture) -> PostgresConfig {
    let at_once = Duration::ZERO;
    let retention = Retention { events: at_once, turn_after: at_once, ..Retention::default() };
    PostgresConfig { retention, ..fixture.config() }
}

/// Sweeps until this is so.
async fn sweep_until(store: &Arc<dyn Store>, what: &str, mut done: impl AsyncFnMut(&Swept) -> bool) {
    let deadline = tokio::time::Instant::now() + WAIT;
    loop {
        let swept = store.sweep().await.expect("a sweep");
        if done(&swept).await {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
    }
}

/// F81: a sweeper died after it had turned the sequence. Rows that were appended and settled before the turn
/// was completed count in the segment's double entry like any other.
#[tokio::test(flavor = "multi_thread")]
async fn f81_a_torn_turn_is_completed_and_its_segment_balances() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let store = join(hasty(&fixture), "a", 1).await;
    let lease = take(&store, 0).await;
    client.batch_execute("select setval('posthaste.outbox_segment', 2, true)").await.expect("a torn turn");
    client.batch_execute(APPEND).await.expect("an append to the new segment");
    let page = read(&lease).await;
    lease.settle(&through(page.number)).await.expect("settled before the turn is completed");
    let truncated = "select count(*) from posthaste.segments where segment = 2 and truncated_at is not null";
    sweep_until(&store, "segment 2 is truncated", async |swept| {
        assert_eq!(swept.audit_failures, 0, "the double entry balances");
        // The cursor has to pass the seals: something must move it.
        client.batch_execute(APPEND).await.expect("an append");
        let page = lease.read(WIDE).await.expect("a read");
        lease.settle(&through(page.number)).await.expect("settled");
        number(&client, truncated).await == 1
    })
    .await;
}

/// A reader may leave a closing segment out for a moment longer: what was just truncated is not turned into.
#[tokio::test(flavor = "multi_thread")]
async fn a_segment_is_not_reused_while_a_reader_may_leave_it_out() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    let store = join(hasty(&fixture), "a", 1).await;
    let just = "update posthaste.segments set truncated_at = clock_timestamp() where segment = 2";
    client.batch_execute(just).await.expect("truncated just now");
    assert!(!store.sweep().await.expect("a sweep").turned, "readers may still leave it out");
    let then =
        "update posthaste.segments set truncated_at = clock_timestamp() - interval '6 s' where segment = 2";
    client.batch_execute(then).await.expect("truncated a while ago");
    assert!(store.sweep().await.expect("a sweep").turned);
}

/// G2: a sink that left the configuration keeps its backlog for a day: a wrong deployment must not cost it.
#[tokio::test(flavor = "multi_thread")]
async fn g2_the_backlog_of_a_retired_sink_is_not_truncated_at_once() {
    let Some(fixture) = PostgresFixture::make().await else { return };
    let client = fixture.connect().await;
    join(fixture.config(), "gone", 1).await.leave().await.expect("it leaves");
    client.batch_execute(APPEND).await.expect("a backlog");
    let mut other = plan("b", 1);
    other.sinks[0].name = "other".into();
    other.routes = "other routes".to_owned();
    let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(hasty(&fixture)).await.expect("a store"));
    store.join(&other).await.expect("join");
    let id = LaneId { sink: "other".into(), lane: 0 };
    let lease = store.take(&id).await.expect("an answer").expect("free");
    let mut turns = 0;
    let pass = async || {
        client.batch_execute(APPEND).await.expect("an append");
        let page = lease.read(WIDE).await.expect("a read");
        lease.settle(&through(page.number)).await.expect("settled");
    };
    sweep_until(&store, "the ring is full", async |swept| {
        turns += u32::from(swept.turned);
        assert_eq!(swept.truncated, 0, "the retired sink has not read it");
        pass().await;
        swept.ring_full
    })
    .await;
    assert_eq!(turns, 7);
    let long_ago =
        "update posthaste.lanes set retired_at = clock_timestamp() - interval '25 hours' where sink = 's'";
    client.batch_execute(long_ago).await.expect("a day later");
    sweep_until(&store, "it is truncated in the end", async |swept| {
        pass().await;
        swept.truncated > 0
    })
    .await;
}
