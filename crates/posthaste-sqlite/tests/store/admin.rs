//! Administration: status, dead letters, lanes, rewind, repair, doctor; each act audited.

use crate::fixture::{SqliteFixture, actor};
use posthaste::admin::{
    Actor, Admin, AdminError, Control, ControlTarget, DeadAct, DeadFilter, EventFilter, RewindTo,
};
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::route::{Filter, Pattern};
use posthaste::sink::Level;
use posthaste::store::{
    Death, Deferral, Due, ErrorClass, JoinPlan, LaneId, Lease, PageLimit, Reason, Settlement, SinkPlan,
    StartAt, Store, StoreError,
};
use posthaste_sqlite::{CHECKS, SqliteAdmin, SqliteConfig, SqliteStore, append};
use posthaste_testkit::conformance::store::StoreFixture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const WIDE: PageLimit = PageLimit { events: 100_000, bytes: 64 << 20 };

fn plan(relay: &str, sinks: &[(&str, Filter)]) -> JoinPlan {
    let sink = |(name, filter): &(&str, Filter)| SinkPlan {
        name: (*name).into(),
        filter: filter.clone(),
        start_at: StartAt::Earliest,
    };
    JoinPlan {
        relay: relay.into(),
        sinks: sinks.iter().map(sink).collect(),
        routes: format!("{sinks:?}"),
        lanes: Some(1),
        lease_ttl: Duration::from_secs(30),
    }
}

async fn join(fixture: &SqliteFixture, plan: &JoinPlan) -> SqliteStore {
    let store = SqliteStore::connect(fixture.config()).await.expect("the store opens");
    store.join(plan).await.expect("joined");
    store
}

async fn take(store: &SqliteStore, sink: &str, lane: i16) -> Arc<dyn Lease> {
    store.take(&LaneId { sink: sink.into(), lane }).await.expect("answered").expect("free")
}

fn append_keyed(fixture: &SqliteFixture, count: usize) {
    let mut connection = fixture.connect();
    let tx = connection.transaction().expect("begin");
    for n in 0..count {
        append(&tx, &Event::new("t", "x").with_key(format!("k{}", n % 7))).expect("appended");
    }
    tx.commit().expect("committed");
}

fn death(code: &str) -> Death {
    Death {
        attempts: 2,
        class: ErrorClass::Permanent,
        code: code.to_owned(),
        error: "no".to_owned(),
        route: "r".into(),
        holds: true,
    }
}

fn audits(fixture: &SqliteFixture) -> Vec<(String, String)> {
    let connection = fixture.connect();
    let mut statement =
        connection.prepare("select action, reason from posthaste_audit order by id").expect("sql");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("a query");
    rows.collect::<Result<_, _>>().expect("rows")
}

async fn read_all(lease: &Arc<dyn Lease>) -> Vec<i64> {
    lease.read(WIDE).await.expect("read").events.iter().map(|stored| stored.seq).collect()
}

/// Reads this many events, in as many pages as it takes. Answers with the last page's number and the first
/// page's events.
async fn read_events(lease: &Arc<dyn Lease>, count: usize) -> (u64, Vec<StoredEvent>) {
    let (mut left, mut first) = (count, Vec::new());
    loop {
        let page = lease.read(PageLimit { events: left, bytes: 64 << 20 }).await.expect("read");
        left -= page.events.len();
        if first.is_empty() {
            first = page.events;
        }
        if left == 0 || !page.more {
            return (page.number, first);
        }
    }
}

async fn settle(lease: &Arc<dyn Lease>, through: u64) -> Result<(), StoreError> {
    lease.settle(&Settlement { through: Some(through), ..Settlement::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_counts_exactly_and_then_estimates() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let sinks = [("all", Filter::Everything), ("rare", Filter::Any(vec![Pattern::new("rare.*")]))];
    let store = join(&fixture, &plan("a", &sinks)).await;
    append_keyed(&fixture, 300);
    let admin = fixture.admin().await;
    let lease = take(&store, "all", 0).await;
    let page = lease.read(PageLimit { events: 100, bytes: 1 << 20 }).await.expect("read");
    settle(&lease, page.number).await.expect("settled");
    let status = admin.status().await.expect("a status");
    let [all, rare] = status.sinks.as_slice() else { panic!("{status:?}") };
    assert_eq!((all.backlog.count, all.backlog.exact), (200, true));
    assert_eq!((rare.backlog.count, rare.backlog.exact), (0, true));
    assert_eq!(status.relays, ["a"]);
    assert_eq!((all.lanes[0].owner.as_deref(), all.lanes[0].position), (Some("a"), 100));
    assert!(all.delivered_per_second > 1.0 && all.oldest_age_seconds >= 0.0);
    append_keyed(&fixture, 60_000);
    let status = admin.status().await.expect("a status");
    let backlog = status.sinks[0].backlog;
    assert!(!backlog.exact && (59_000..61_500).contains(&backlog.count), "{backlog:?}");
    // A paused sink and a limit are part of it.
    let sink = ControlTarget::Sink("all".to_owned());
    admin.control(&sink, &Control::Pause, &actor()).await.expect("paused");
    admin.control(&sink, &Control::RateLimit(Some(5.0)), &actor()).await.expect("limited");
    let status = admin.status().await.expect("a status");
    assert_eq!((status.sinks[0].paused, status.sinks[0].rate_limit), (true, Some(5.0)));
    let unknown = ControlTarget::Sink("al".to_owned());
    let refused = admin.control(&unknown, &Control::Pause, &actor()).await.expect_err("no such sink");
    assert!(
        matches!(refused, AdminError::NotFound { message: text, .. } if text.contains("known are: all, rare"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_listed_replayed_and_discarded_with_an_audit() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let store = join(&fixture, &plan("a", &[("s", Filter::Everything)])).await;
    append_keyed(&fixture, 21);
    let lease = take(&store, "s", 0).await;
    let page = lease.read(WIDE).await.expect("read");
    let ids: Vec<_> = page.events.iter().map(|stored| stored.event.id).collect();
    let dead = page.events.into_iter().enumerate();
    let dead = dead.map(|(n, stored)| (stored, death(if n % 3 == 0 { "a" } else { "b" }))).collect();
    let settlement = Settlement { through: Some(page.number), dead, ..Settlement::default() };
    lease.settle(&settlement).await.expect("settled");
    let admin = fixture.admin().await;
    let code = |code: &str| DeadFilter { code: Some(code.to_owned()), ..DeadFilter::default() };
    assert_eq!(admin.dead_count(&code("a")).await.expect("a count"), 7);
    let first = admin.dead_list(&code("b"), None, 5).await.expect("a page");
    let second = admin.dead_list(&code("b"), Some(&first[4].cursor), 100).await.expect("a page");
    assert_eq!((first.len(), second.len()), (5, 9));
    let newest = admin.dead_newest(&code("b"), None, 5).await.expect("a page");
    let older = admin.dead_newest(&code("b"), Some(&newest[4].cursor), 100).await.expect("a page");
    assert_eq!((newest[0].id, older[8].id), (second[8].id, first[0].id));
    for hostile in ["-1", "0 or true", "0002d3f0a1b2c3d4.17"] {
        let refused = admin.dead_newest(&code("b"), Some(hostile), 5).await.expect_err(hostile);
        assert_eq!(refused.code(), "admin.bad_place");
    }
    let shown = admin.dead_show(ids[0]).await.expect("a letter");
    assert_eq!((shown.len(), shown[0].payload.as_deref()), (1, Some(&b"x"[..])));
    let nobody = Actor::new("test", " ");
    admin.dead_act(&code("a"), DeadAct::Replay, &nobody, 10).await.expect_err("a reason is needed");
    admin
        .dead_act(&DeadFilter::default(), DeadAct::Discard, &actor(), 10)
        .await
        .expect_err("an empty filter");
    // In chunks, until nothing matches.
    let mut done = Vec::new();
    loop {
        match admin.dead_act(&code("a"), DeadAct::Discard, &actor(), 3).await.expect("acted") {
            0 => break,
            count => done.push(count),
        }
    }
    assert_eq!(done, [3, 3, 1]);
    // By topic and by id; a key's events come due one after the other, in order.
    let topic = DeadFilter { topic: Some("t*".to_owned()), ..DeadFilter::default() };
    assert_eq!(admin.dead_act(&topic, DeadAct::Replay, &actor(), 1_000).await.expect("acted"), 14);
    assert_eq!(fixture.deferred("s").await.len(), 14);
    let due =
        lease.due(posthaste::store::DueQuery { events: 100, bytes: 1 << 20, ..Default::default() }).await;
    let due = due.expect("due").events;
    assert_eq!(due.len(), 14, "each head with its run");
    assert!(due.iter().all(|due| due.reason == Reason::Replayed && due.attempts == 0));
    let actions: Vec<String> = audits(&fixture).into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, ["discard", "discard", "discard", "replay"]);
}

/// A letter that no route took goes to whoever takes its topic now, and is refused while nobody does.
#[tokio::test(flavor = "multi_thread")]
async fn an_unrouted_letter_is_replayed_to_whoever_takes_it() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let routed = Filter::Any(vec![Pattern::new("orders.*")]);
    let sinks = [("orders", routed.clone()), ("unrouted", Filter::NoneOf(vec![Pattern::new("orders.*")]))];
    let store = join(&fixture, &plan("a", &sinks)).await;
    append_keyed(&fixture, 1);
    let lease = take(&store, "unrouted", 0).await;
    let page = lease.read(WIDE).await.expect("read");
    let dead = page.events.into_iter().map(|stored| (stored, death("route.none"))).collect();
    lease
        .settle(&Settlement { through: Some(page.number), dead, ..Settlement::default() })
        .await
        .expect("settled");
    let admin = fixture.admin().await;
    let all = DeadFilter { all: true, ..DeadFilter::default() };
    let refused = admin.dead_act(&all, DeadAct::Replay, &actor(), 10).await.expect_err("nowhere to go");
    assert!(matches!(refused, AdminError::Conflict { .. }), "{refused}");
    assert_eq!(fixture.dead("unrouted").await.len(), 1, "nothing was done");
    store.leave().await.expect("left");
    let now =
        [("orders", Filter::Any(vec![Pattern::new("orders.*"), Pattern::new("t")])), ("unrouted", routed)];
    let _store = join(&fixture, &plan("b", &now)).await;
    assert_eq!(admin.dead_act(&all, DeadAct::Replay, &actor(), 10).await.expect("replayed"), 1);
    assert_eq!((fixture.deferred("orders").await.len(), fixture.dead("unrouted").await.len()), (1, 0));
    let everything = EventFilter { from_seq: Some(1), ..EventFilter::default() };
    let refused = admin.events_replay("unrouted", &everything, 0, 10, None).await;
    assert_eq!(refused.expect_err("it delivers nothing").code(), "admin.not_served");
}

/// Letters of a sink that nobody serves any more would wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn letters_of_a_sink_that_left_are_not_replayed() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let store = join(&fixture, &plan("a", &[("old", Filter::Everything)])).await;
    append_keyed(&fixture, 1);
    let lease = take(&store, "old", 0).await;
    let page = lease.read(WIDE).await.expect("read");
    let dead = page.events.into_iter().map(|stored| (stored, death("a"))).collect();
    let settlement = Settlement { through: Some(page.number), dead, ..Settlement::default() };
    lease.settle(&settlement).await.expect("settled");
    store.leave().await.expect("left");
    let _store = join(&fixture, &plan("b", &[("new", Filter::Everything)])).await;
    let (admin, all) = (fixture.admin().await, DeadFilter { all: true, ..DeadFilter::default() });
    let refused = admin.dead_act(&all, DeadAct::Replay, &actor(), 10).await.expect_err("nobody serves it");
    assert!(matches!(refused, AdminError::Conflict { .. }), "{refused}");
    assert_eq!(admin.dead_act(&all, DeadAct::Discard, &actor(), 10).await.expect("discarded"), 1);
}

/// A change of routes skips nothing that waited; a rewind after that reads by the routes in force.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_routes_skips_nothing_and_a_rewind_forgets_it() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let (t, u) = (Filter::Any(vec![Pattern::new("t")]), Filter::Any(vec![Pattern::new("u")]));
    let store = join(&fixture, &plan("a", &[("s", t.clone())])).await;
    append_keyed(&fixture, 5);
    store.leave().await.expect("left");
    let store = join(&fixture, &plan("b", &[("s", u.clone())])).await;
    let mut other = SqliteStore::connect(fixture.config()).await.expect("the store opens");
    store.leave().await.expect("left");
    let again = plan("c", &[("s", Filter::Any(vec![Pattern::new("v")]))]);
    let refused = other.join(&again).await.expect_err("the last change is not worked off");
    assert!(refused.to_string().contains("change again"), "{refused}");
    other = join(&fixture, &plan("d", &[("s", u)])).await;
    append_keyed(&fixture, 5);
    let lease = take(&other, "s", 0).await;
    let page = lease.read(WIDE).await.expect("read");
    let seqs: Vec<i64> = page.events.iter().map(|stored| stored.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5], "what the former routes took, up to the change");
    settle(&lease, page.number).await.expect("settled");
    fixture.admin().await.rewind("s", RewindTo::Earliest, &actor()).await.expect("rewound");
    assert!(read_all(&take(&other, "s", 0).await).await.is_empty(), "by the routes in force");
}

/// Another number of lanes: owners lose theirs, nothing is skipped, keys stay together.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_lanes_changes_and_nothing_is_skipped() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let store = join(&fixture, &plan("a", &[("s", Filter::Everything)])).await;
    append_keyed(&fixture, 70);
    let lease = take(&store, "s", 0).await;
    let page = lease.read(PageLimit { events: 30, bytes: 1 << 20 }).await.expect("read");
    settle(&lease, page.number).await.expect("settled");
    let unsettled = lease.read(PageLimit { events: 30, bytes: 1 << 20 }).await.expect("read");
    let admin = fixture.admin().await;
    for (lanes, wrong) in [(4, false), (3, false), (1, false), (0, true), (257, true)] {
        assert_eq!(admin.set_lanes(lanes, &actor()).await.is_err(), wrong, "{lanes}");
        if wrong {
            continue;
        }
        let mut got = BTreeSet::new();
        for lane in 0..lanes {
            let lease = take(&store, "s", lane as i16).await;
            got.extend(read_all(&lease).await);
        }
        assert_eq!(got, (31..=70).collect(), "{lanes} lanes");
        assert!(lease.epoch() < take(&store, "s", 0).await.epoch());
    }
    let lost = settle(&lease, unsettled.number).await;
    assert!(matches!(lost, Err(StoreError::LeaseLost(_))), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_is_rewound_by_number_and_by_time() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let store = join(&fixture, &plan("a", &[("s", Filter::Everything)])).await;
    append_keyed(&fixture, 50);
    let instant = fixture.now().await;
    append_keyed(&fixture, 50);
    let lease = take(&store, "s", 0).await;
    let page = lease.read(WIDE).await.expect("read");
    settle(&lease, page.number).await.expect("settled");
    let admin = fixture.admin().await;
    for (to, first) in [(RewindTo::Seq(90), 91), (RewindTo::Time(instant), 51), (RewindTo::Earliest, 1)] {
        admin.rewind("s", to, &actor()).await.expect("rewound");
        let lease = take(&store, "s", 0).await;
        assert_eq!(read_all(&lease).await, (first..=100).collect::<Vec<i64>>(), "{to:?}");
    }
    let forward = admin.rewind("s", RewindTo::Seq(99), &actor()).await.expect_err("it stands before that");
    assert!(matches!(forward, AdminError::Conflict { .. }), "{forward}");
    let future = Timestamp(fixture.now().await.0 + 1_000_000);
    admin.rewind("s", RewindTo::Time(future), &actor()).await.expect_err("nothing since then");
}

/// Somebody set the sequence back: the lane stops loudly, `doctor` says so, `repair` goes on without
/// skipping.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_log_that_went_back_is_noticed_and_repaired() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let store = join(&fixture, &plan("a", &[("s", Filter::Everything)])).await;
    append_keyed(&fixture, 20);
    let lease = take(&store, "s", 0).await;
    let page = lease.read(WIDE).await.expect("read");
    settle(&lease, page.number).await.expect("settled");
    lease.release().await.expect("released");
    let admin = fixture.admin().await;
    let sound = admin.repair("s", &actor()).await.expect_err("nothing to repair");
    assert!(matches!(sound, AdminError::Conflict { .. }), "{sound}");
    let tampered =
        "delete from posthaste_outbox; update sqlite_sequence set seq = 5 where name = 'posthaste_outbox'";
    fixture.connect().execute_batch(tampered).expect("tampered");
    append_keyed(&fixture, 3);
    let broken = store.take(&LaneId { sink: "s".into(), lane: 0 }).await;
    assert!(
        matches!(&broken, Err(StoreError::Broken { message: text, .. }) if text.contains("lanes repair"))
    );
    let findings = admin.doctor().await.expect("a diagnosis");
    assert!(findings.iter().any(|finding| finding.check == "log_went_back" && finding.level == Level::Fail));
    admin.repair("s", &actor()).await.expect("repaired");
    append_keyed(&fixture, 1);
    let lease = take(&store, "s", 0).await;
    assert_eq!(read_all(&lease).await, [6, 7, 8, 21]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_makes_every_check_and_finds_what_is_broken() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let store = join(&fixture, &plan("a", &[("s", Filter::Everything)])).await;
    let _lease = take(&store, "s", 0).await;
    let findings = fixture.admin().await.doctor().await.expect("a diagnosis");
    let names: Vec<&str> = findings.iter().map(|finding| finding.check.as_str()).collect();
    assert_eq!(names, CHECKS);
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
    // Lanes without an owner are a reason to worry where something waits.
    append_keyed(&fixture, 1);
    let breaks = [
        ("append_only", "drop trigger posthaste_outbox_no_update"),
        ("lanes_owned", "update posthaste_lanes set owner = null"),
        ("retired_sinks", "update posthaste_lanes set retired_at = 1"),
        ("clock", "update posthaste_receipts set settled_at = settled_at + 3600000000"),
        ("schema_version", "delete from posthaste_migrations"),
        ("journal_mode", "pragma journal_mode = delete"),
    ];
    drop((store, _lease));
    for (check, sql) in breaks {
        // The last one needs the file for itself; the watch of a store that was dropped may still look once
        // more.
        posthaste_testkit::conformance::eventually(check, Duration::from_secs(60), || async {
            fixture.connect().execute_batch(sql).ok()
        })
        .await;
        let findings = SqliteAdmin::new(fixture.config()).doctor().await.expect("a diagnosis");
        let found = findings.iter().find(|finding| finding.check == check).expect(check);
        assert_ne!(found.level, Level::Ok, "{check}: {}", found.text);
    }
    let missing = SqliteAdmin::new(SqliteConfig::new(fixture.path().with_extension("nothing")));
    assert_eq!(missing.doctor().await.expect("a diagnosis")[0].level, Level::Fail);
}

/// Deferred events and dead letters are copies: they outlive the log's rows.
#[tokio::test(flavor = "multi_thread")]
async fn old_events_go_when_every_sink_has_handled_them() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let mut config = fixture.config();
    config.retention.events = Duration::ZERO;
    let store = SqliteStore::connect(config.clone()).await.expect("the store opens");
    store
        .join(&plan("a", &[("one", Filter::Everything), ("two", Filter::Everything)]))
        .await
        .expect("joined");
    append_keyed(&fixture, 5_000);
    let left = || -> i64 {
        let sql = "select count(*) from posthaste_outbox";
        fixture.connect().query_row(sql, [], |row| row.get(0)).expect("a count")
    };
    store.sweep().await.expect("swept");
    assert_eq!(left(), 5_000, "nobody has read them");
    let one = take(&store, "one", 0).await;
    let (number, events) = read_events(&one, 5_000).await;
    let deferral = |due| Deferral {
        reason: Reason::Retry,
        due,
        attempts: 1,
        class: None,
        code: None,
        error: None,
        route: "r".into(),
        destination: "d".to_owned(),
        holds: true,
        holds_when_dead: true,
    };
    let mut events = events.into_iter();
    let waiting = events.next().expect("an event");
    let dead = events.next().expect("an event");
    let settlement = Settlement {
        through: Some(number),
        deferred: vec![(waiting, deferral(Due::In(Duration::ZERO)))],
        dead: vec![(dead, death("a"))],
        ..Settlement::default()
    };
    one.settle(&settlement).await.expect("settled");
    store.sweep().await.expect("swept");
    assert_eq!(left(), 5_000, "the other sink has not");
    let two = take(&store, "two", 0).await;
    let (last, _) = read_events(&two, 4_000).await;
    settle(&two, last).await.expect("settled");
    let swept = store.sweep().await.expect("swept");
    assert_eq!(left(), 1_000, "{swept:?}");
    let (last, first) = read_events(&two, 1_000).await;
    assert_eq!(first[0].seq, 4_001, "what is left is what was not handled");
    assert_eq!((fixture.deferred("one").await, fixture.dead("one").await), (vec![1], vec![2]));
    let due = one.due(posthaste::store::DueQuery { events: 10, bytes: 1 << 20, ..Default::default() }).await;
    assert_eq!(due.expect("due").events[0].stored.event.payload.as_deref(), Some(&b"x"[..]));
    // Numbers go on, although the log's end was removed.
    settle(&two, last).await.expect("settled");
    store.sweep().await.expect("swept");
    assert_eq!(left(), 0);
    append_keyed(&fixture, 1);
    assert_eq!(read_all(&one).await, [5_001]);
}

/// Receipts are history: the old ones go, of lanes that vanished too; the last of each is its cursor and
/// stays.
#[tokio::test(flavor = "multi_thread")]
async fn old_receipts_go_and_cursors_stay() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let mut config = fixture.config();
    config.retention.events = Duration::ZERO;
    let store = SqliteStore::connect(config).await.expect("the store opens");
    store.join(&plan("a", &[("s", Filter::Everything)])).await.expect("joined");
    fixture.admin().await.set_lanes(2, &actor()).await.expect("set");
    for lane in 0..2 {
        let lease = take(&store, "s", lane).await;
        for _ in 0..20 {
            append_keyed(&fixture, 7);
            let page = lease.read(WIDE).await.expect("read");
            settle(&lease, page.number).await.expect("settled");
        }
    }
    fixture.admin().await.set_lanes(1, &actor()).await.expect("set");
    let receipts = || -> Vec<(i64, i64)> {
        let connection = fixture.connect();
        let sql = "select lane, n from posthaste_receipts order by lane, n";
        let mut statement = connection.prepare(sql).expect("a statement");
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("a query");
        rows.collect::<Result<_, _>>().expect("rows")
    };
    let before = receipts();
    let last = |lane: i64| before.iter().rev().find(|(of, _)| *of == lane).copied().expect("receipts");
    assert!(before.len() > 40);
    store.sweep().await.expect("swept");
    assert_eq!(receipts(), [last(0), last(1)]);
}

/// The file gives room back, and a size limit makes events go before their time.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_too_large_lets_go_of_what_is_handled() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let mut config = fixture.config();
    config.retention.file_bytes_max = Some(1 << 20);
    let store = SqliteStore::connect(config.clone()).await.expect("the store opens");
    store.join(&plan("a", &[("s", Filter::Everything)])).await.expect("joined");
    let mut connection = fixture.connect();
    for _ in 0..20 {
        let tx = connection.transaction().expect("begin");
        for _ in 0..1_000 {
            append(&tx, &Event::new("t", vec![7; 1_000])).expect("appended");
        }
        tx.commit().expect("committed");
    }
    let lease = take(&store, "s", 0).await;
    let (last, _) = read_events(&lease, 20_000).await;
    settle(&lease, last).await.expect("settled");
    for _ in 0..8 {
        store.sweep().await.expect("swept");
    }
    let one = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number");
    let left = one("select count(*) from posthaste_outbox");
    assert!(left < 2_000, "{left} events are left");
    assert!(one("pragma page_count") < 4_000, "{} pages: the file shrank", one("pragma page_count"));
}
