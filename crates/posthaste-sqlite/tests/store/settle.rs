//! Settling beyond the suite: what was committed unheard, rows that are no events, rows that somebody
//! removes.

use crate::fixture::SqliteFixture;
use posthaste::admin::{Admin, DeadAct, DeadFilter};
use posthaste::event::Defect;
use posthaste::route::{Filter, Pattern};
use posthaste::store::{
    Death, Deferral, Detained, Due, DueQuery, ErrorClass, JoinPlan, LaneId, Lease, PageLimit, Reason,
    Settlement, SinkPlan, StartAt, Store, StoreError,
};
use posthaste_sqlite::SqliteStore;
use posthaste_testkit::conformance::store::StoreFixture;
use std::sync::Arc;
use std::time::Duration;

const WIDE: PageLimit = PageLimit { events: 1_000, bytes: 64 << 20 };

async fn lease(fixture: &SqliteFixture) -> (SqliteStore, Arc<dyn Lease>) {
    let store = SqliteStore::connect(fixture.config()).await.expect("the store opens");
    let sink = SinkPlan { name: "s".into(), filter: Filter::Everything, start_at: StartAt::Earliest };
    let plan = JoinPlan {
        relay: "a".into(),
        sinks: vec![sink],
        routes: String::new(),
        lanes: Some(1),
        lease_ttl: Duration::from_secs(30),
    };
    store.join(&plan).await.expect("joined");
    let lease = store.take(&LaneId { sink: "s".into(), lane: 0 }).await.expect("answered").expect("free");
    (store, lease)
}

fn death() -> Death {
    Death {
        attempts: 1,
        class: ErrorClass::Permanent,
        code: "test".to_owned(),
        error: "no".to_owned(),
        route: "r".into(),
        holds: true,
    }
}

/// A settlement that was committed although nobody heard of it is sent again, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_was_committed_unheard_is_repeated_without_harm() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let (_store, lease) = lease(&fixture).await;
    let connection = fixture.connect();
    connection.execute("insert into posthaste_outbox (topic) values ('t')", []).expect("appended");
    let page = lease.read(WIDE).await.expect("read");
    let unheard = "insert into posthaste_receipts (sink, lane, n, epoch, kind, position, settled_at)
                   select sink, lane, n + 1, epoch, 'settle', 1, settled_at from posthaste_receipts order by n desc limit 1";
    connection.execute(unheard, []).expect("as if it were ours");
    let dead = page.events.into_iter().map(|stored| (stored, death())).collect();
    let settlement = Settlement { through: Some(page.number), dead, ..Settlement::default() };
    lease.settle(&settlement).await.expect("repeated without harm");
    assert!(fixture.dead("s").await.is_empty(), "nothing is written twice");
    connection.execute("insert into posthaste_outbox (topic) values ('t')", []).expect("appended");
    let page = lease.read(WIDE).await.expect("read");
    assert_eq!(page.events[0].seq, 2);
    let next = Settlement { through: Some(page.number), ..Settlement::default() };
    lease.settle(&next).await.expect("and the next one counts");
    let receipts: i64 = connection
        .query_row("select count(*) from posthaste_receipts where kind = 'settle'", [], |row| row.get(0))
        .expect("a count");
    assert_eq!(receipts, 2);
}

/// F49: plain SQL passes no code of ours. Each bad row is one dead letter that people can read; the rest
/// flows.
#[tokio::test(flavor = "multi_thread")]
async fn f49_rows_that_are_no_events_are_dead_letters_that_can_be_read() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let (_store, lease) = lease(&fixture).await;
    fixture
        .connect()
        .execute_batch(
            "insert into posthaste_outbox (topic, payload) values (cast(x'ff41' as text), 'x');
             insert into posthaste_outbox (topic, key) values ('t', cast(x'c328' as text));
             insert into posthaste_outbox (topic, headers) values ('t', '[1]');
             insert into posthaste_outbox (topic, headers) values ('t', 'no json');
             insert into posthaste_outbox (topic, id) values ('t', 'no uuid');
             insert into posthaste_outbox (topic, payload) values ('t', zeroblob(20000000));
             insert into posthaste_outbox (topic, payload) values ('t', 42);",
        )
        .expect("plain SQL");
    let page = lease.read(WIDE).await.expect("read");
    let defects: Vec<bool> = page.events.iter().map(|stored| stored.defect.is_some()).collect();
    assert_eq!(defects, [true, true, true, true, true, true, false]);
    assert!(
        matches!(page.events[5].defect, Some(Defect::Limit(_))) && page.events[5].event.payload.is_none()
    );
    assert_eq!(page.events[6].event.payload.as_deref(), Some(&b"42"[..]));
    // One waits first, the others die at once.
    let deferral = Deferral {
        reason: Reason::Retry,
        due: Due::In(Duration::ZERO),
        attempts: 1,
        class: None,
        code: None,
        error: Some("zero \0 byte".to_owned()),
        route: "r".into(),
        destination: "d".to_owned(),
        holds: true,
        holds_when_dead: true,
    };
    let (mut dead, mut deferred) = (Vec::new(), Vec::new());
    for stored in page.events {
        match stored.seq {
            2 => deferred.push((stored, deferral.clone())),
            _ => dead.push((stored, death())),
        }
    }
    let settlement = Settlement { through: Some(page.number), dead, deferred, ..Settlement::default() };
    lease.settle(&settlement).await.expect("settled");
    let due =
        lease.due(DueQuery { events: 10, bytes: 1 << 20, ..DueQuery::default() }).await.expect("due").events;
    assert_eq!(due.len(), 1);
    let died = Settlement { died: vec![(2, death())], ..Settlement::default() };
    lease.settle(&died).await.expect("settled");
    let admin = fixture.admin().await;
    let all = DeadFilter { all: true, ..DeadFilter::default() };
    let letters = admin.dead_list(&all, None, 100).await.expect("a list");
    assert_eq!(letters.len(), 7);
    assert_eq!(letters[0].topic, "\u{fffd}A");
    assert_eq!(admin.dead_act(&all, DeadAct::Replay, &crate::fixture::actor(), 100).await.expect("acted"), 7);
}

/// A row that a sink has not handled stays, whoever asks for it to go.
#[tokio::test(flavor = "multi_thread")]
async fn an_unhandled_event_cannot_be_deleted_by_hand() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let (_store, lease) = lease(&fixture).await;
    let connection = fixture.connect();
    connection.execute("insert into posthaste_outbox (topic) values ('t'), ('t')", []).expect("appended");
    let page = lease.read(PageLimit { events: 1, bytes: 1 << 20 }).await.expect("read");
    let settlement = Settlement { through: Some(page.number), ..Settlement::default() };
    lease.settle(&settlement).await.expect("settled");
    let refused = connection.execute("delete from posthaste_outbox", []).expect_err("one is not handled");
    assert!(refused.to_string().contains("not handled"), "{refused}");
    assert_eq!(connection.execute("delete from posthaste_outbox where seq = 1", []).expect("handled"), 1);
}

/// A filter that selects one event behind a hundred thousand others: the scan goes on from window to window.
#[tokio::test(flavor = "multi_thread")]
async fn a_rare_event_far_behind_is_found() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let store = SqliteStore::connect(fixture.config()).await.expect("the store opens");
    let filter = Filter::Any(vec![posthaste::route::Pattern::new("rare")]);
    let sink = SinkPlan { name: "s".into(), filter, start_at: StartAt::Earliest };
    let plan = JoinPlan {
        relay: "a".into(),
        sinks: vec![sink],
        routes: String::new(),
        lanes: Some(1),
        lease_ttl: Duration::from_secs(30),
    };
    store.join(&plan).await.expect("joined");
    fixture
        .connect()
        .execute_batch(
            "insert into posthaste_outbox (topic)
             select 't' from (with recursive n (n) as (select 1 union all select n + 1 from n where n < 250000) select n from n);
             insert into posthaste_outbox (topic) values ('rare');",
        )
        .expect("appended");
    let lease = store.take(&LaneId { sink: "s".into(), lane: 0 }).await.expect("answered").expect("free");
    let (mut pages, mut found) = (0, Vec::new());
    loop {
        let page = lease.read(WIDE).await.expect("read");
        pages += 1;
        found.extend(page.events.iter().map(|stored| stored.seq));
        if !page.more {
            break;
        }
        assert!(page.moved && pages < 10);
    }
    assert_eq!((found, pages > 2), (vec![250_001], true), "in {pages} pages");
}

/// G3: a look at the deferred runs while a settlement puts the first event of a key aside, and sees nothing
/// of it. What is read after the settlement waits behind that event all the same.
#[tokio::test(flavor = "multi_thread")]
async fn g3_a_look_beside_a_settlement_does_not_unhold_its_keys() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let (_store, lease) = lease(&fixture).await;
    let connection = fixture.connect();
    let append = "insert into posthaste_outbox (topic, key) values ('t', 'k')";
    connection.execute(append, []).expect("appended");
    let page = lease.read(WIDE).await.expect("read");
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
    let deferred = page.events.into_iter().map(|stored| (stored, deferral.clone())).collect();
    let settlement = Settlement { through: Some(page.number), deferred, ..Settlement::default() };
    connection.execute_batch("begin immediate").expect("the write lock");
    let mut settling = lease.settle(&settlement);
    tokio::select! {
        biased;
        settled = &mut settling => panic!("it waits for the lock: {settled:?}"),
        () = std::future::ready(()) => {}
    }
    let query = DueQuery { events: 10, bytes: 1 << 20, ..DueQuery::default() };
    assert!(lease.due(query).await.expect("a look").events.is_empty(), "it is not there yet");
    connection.execute(append, []).expect("another of the key");
    connection.execute_batch("commit").expect("the lock is free");
    settling.await.expect("settled");
    let page = lease.read(WIDE).await.expect("read");
    assert_eq!(page.detained, [(0, Detained::Behind)], "it waits behind the first");
}

/// G2, G4: a relay that froze still reads by its former routes when others begin. It must not move a cursor
/// past what is that sink's by now.
#[tokio::test(flavor = "multi_thread")]
async fn g2_g4_whoever_reads_by_former_routes_is_fenced_when_others_join() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let (_frozen, lease) = lease(&fixture).await;
    let expired = "update posthaste_relays set expires_at = 0";
    fixture.connect().execute(expired, []).expect("it froze for long");
    let other = SqliteStore::connect(fixture.config()).await.expect("the store opens");
    let filter = Filter::Any(vec![Pattern::new("t")]);
    let plan = JoinPlan {
        relay: "b".into(),
        sinks: vec![SinkPlan { name: "s".into(), filter, start_at: StartAt::Auto }],
        routes: "others".to_owned(),
        lanes: None,
        lease_ttl: Duration::from_secs(30),
    };
    other.join(&plan).await.expect("joined");
    fixture.connect().execute("insert into posthaste_outbox (topic) values ('t')", []).expect("appended");
    let page = lease.read(WIDE).await.expect("read");
    let settled = lease.settle(&Settlement { through: Some(page.number), ..Settlement::default() }).await;
    assert!(matches!(settled, Err(StoreError::LeaseLost(_))), "{settled:?}");
}
