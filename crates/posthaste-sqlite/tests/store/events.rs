//! Looking at events: lists, one event's life, what is new, sending some again.

use crate::fixture::{SqliteFixture, actor};
use posthaste::admin::{Admin, AdminError, DeadAct, DeadFilter, EventFilter, EventName, Progress, Where};
use posthaste::event::Event;
use posthaste::route::{Filter, Pattern};
use posthaste::store::{
    Death, Deferral, Due, DueQuery, ErrorClass, JoinPlan, LaneId, Lease, PageLimit, Reason, Settlement,
    SinkPlan, StartAt, Store,
};
use posthaste_sqlite::{SqliteStore, append};
use posthaste_testkit::conformance::store::StoreFixture;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

const WIDE: PageLimit = PageLimit { events: 10_000, bytes: 64 << 20 };

async fn lease(fixture: &SqliteFixture) -> (SqliteStore, Arc<dyn Lease>) {
    let store = SqliteStore::connect(fixture.config()).await.expect("the store opens");
    let sink = |name: &str, topic: &str| SinkPlan {
        name: name.into(),
        filter: Filter::Any(vec![Pattern::new(topic)]),
        start_at: StartAt::Earliest,
    };
    let plan = JoinPlan {
        relay: "a".into(),
        sinks: vec![sink("s", "orders.*"), sink("other", "users.*")],
        routes: String::new(),
        lanes: Some(1),
        lease_ttl: Duration::from_secs(30),
    };
    store.join(&plan).await.expect("joined");
    let lease = store.take(&LaneId { sink: "s".into(), lane: 0 }).await.expect("answered").expect("free");
    (store, lease)
}

fn append_some(fixture: &SqliteFixture, count: usize) -> Vec<Uuid> {
    let mut connection = fixture.connect();
    let tx = connection.transaction().expect("begin");
    let event = |n: usize| Event::new("orders.placed", n.to_string()).with_key(format!("k{}", n % 3));
    let ids = (0..count).map(|n| append(&tx, &event(n)).expect("appended")).collect();
    tx.commit().expect("committed");
    ids
}

async fn settle_all(lease: &Arc<dyn Lease>) {
    let page = lease.read(WIDE).await.expect("read");
    let settlement = Settlement { through: Some(page.number), ..Settlement::default() };
    lease.settle(&settlement).await.expect("settled");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_listed_by_page_key_topic_and_time() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    append_some(&fixture, 10);
    let instant = fixture.now().await;
    append_some(&fixture, 20);
    let admin = fixture.admin().await;
    let all = EventFilter::default();
    let (mut seqs, mut after) = (Vec::new(), Some(0));
    while let Some(place) = after {
        let page = admin.events(&all, place, 7).await.expect("a page");
        seqs.extend(page.events.iter().map(|event| event.seq));
        after = page.next;
    }
    assert_eq!(seqs, (1..=30).collect::<Vec<i64>>());
    let count = async |filter: EventFilter| admin.events(&filter, 0, 100).await.expect("a page").events.len();
    assert_eq!(count(EventFilter { key: Some("k1".to_owned()), ..all.clone() }).await, 10);
    assert_eq!(count(EventFilter { topic: Some("Orders.*".to_owned()), ..all.clone() }).await, 0);
    assert_eq!(count(EventFilter { since: Some(instant), ..all.clone() }).await, 20);
    assert_eq!(count(EventFilter { until: Some(instant), ..all.clone() }).await, 10);
    assert_eq!(count(EventFilter { from_seq: Some(5), to_seq: Some(8), ..all.clone() }).await, 4);
    // What is new.
    let (none, place) = admin.events_since(&all, None).await.expect("a place");
    assert!(none.is_empty());
    append_some(&fixture, 2);
    let (new, place) = admin.events_since(&all, Some(&place)).await.expect("new ones");
    assert_eq!(new.iter().map(|event| event.seq).collect::<Vec<_>>(), [31, 32]);
    assert!(admin.events_since(&all, Some(&place)).await.expect("nothing").0.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_s_life_is_told() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let (_store, lease) = lease(&fixture).await;
    let ids = append_some(&fixture, 6);
    let admin = fixture.admin().await;
    let life = async |n: usize| admin.event(EventName::Id(ids[n]), Where::default()).await.expect("a life");
    let first = life(0).await;
    assert_eq!((first.event.seq, first.event.payload.as_deref(), first.in_log), (1, Some(&b"0"[..]), true));
    let progress: Vec<_> = first.sinks.iter().map(|sink| (sink.sink.as_str(), sink.progress)).collect();
    assert_eq!(progress, [("other", Progress::NotRouted), ("s", Progress::Ahead)]);
    let page = lease.read(WIDE).await.expect("read");
    let (number, mut events) = (page.number, page.events.into_iter());
    let deferral = Deferral {
        reason: Reason::Retry,
        due: Due::In(Duration::from_secs(60)),
        attempts: 2,
        class: Some(ErrorClass::Transient),
        code: None,
        error: Some("busy".to_owned()),
        route: "r".into(),
        destination: "d".to_owned(),
        holds: true,
        holds_when_dead: false,
    };
    let behind = Deferral { due: Due::Behind, reason: Reason::Held, ..deferral.clone() };
    let death = Death {
        attempts: 1,
        class: ErrorClass::Permanent,
        code: "no".to_owned(),
        error: "no".to_owned(),
        route: "r".into(),
        holds: false,
    };
    let (waits, dies) = (events.next().expect("an event"), events.next().expect("an event"));
    let held = events.nth(1).expect("of the first one's key");
    let settlement = Settlement {
        through: Some(number),
        deferred: vec![(waits, deferral), (held, behind)],
        dead: vec![(dies, death)],
        ..Settlement::default()
    };
    lease.settle(&settlement).await.expect("settled");
    let of_s = async |n: usize| life(n).await.sinks.pop().expect("two sinks");
    let first = of_s(0).await;
    assert_eq!((first.progress, first.holds_back), (Progress::Deferred, 1));
    assert_eq!(first.waiting.expect("it waits").last_error.as_deref(), Some("busy"));
    assert_eq!(of_s(1).await.progress, Progress::Dead);
    let third = of_s(2).await;
    assert_eq!(third.progress, Progress::Passed);
    assert_eq!(third.passed.expect("its receipt").epoch, lease.epoch());
    assert_eq!((of_s(3).await.behind, of_s(3).await.progress), (Some(1), Progress::Deferred));
    let filter = DeadFilter { ids: vec![ids[1]], ..DeadFilter::default() };
    admin.dead_act(&filter, DeadAct::Discard, &actor(), 10).await.expect("discarded");
    assert_eq!(life(1).await.acts[0].action, "discard");
    let missing =
        admin.event(EventName::Id(Uuid::now_v7()), Where::default()).await.expect_err("no such event");
    assert!(matches!(missing, AdminError::NotFound { .. }), "{missing}");
    let everywhere = Where { everywhere: true, near: None };
    assert_eq!(admin.event(EventName::Id(ids[5]), everywhere).await.expect("found").event.seq, 6);
}

/// Only what the sink has passed, in the order of its keys, and audited; what waits or is dead is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_sent_again() {
    let fixture = SqliteFixture::make().await.expect("a fixture");
    let (_store, lease) = lease(&fixture).await;
    append_some(&fixture, 12);
    settle_all(&lease).await;
    append_some(&fixture, 3);
    let admin = fixture.admin().await;
    let filter = EventFilter { key: Some("k1".to_owned()), ..EventFilter::default() };
    let dry = admin.events_replay("s", &filter, 0, 100, None).await.expect("a dry run");
    assert_eq!((dry.events, dry.done, dry.to_seq, fixture.deferred("s").await.len()), (4, true, 12, 0));
    let (mut after, mut sent) = (0, 0);
    loop {
        let chunk = admin.events_replay("s", &filter, after, 3, Some(&actor())).await.expect("a chunk");
        sent += chunk.events;
        after = chunk.reached;
        if chunk.done {
            break;
        }
    }
    assert_eq!((sent, fixture.deferred("s").await), (4, vec![2, 5, 8, 11]));
    let due = lease.due(DueQuery { events: 100, bytes: 1 << 20, ..DueQuery::default() }).await.expect("due");
    let seqs: Vec<i64> = due.events.iter().map(|due| due.stored.seq).collect();
    assert_eq!(seqs, [2, 5, 8, 11], "in order, behind each other");
    let again = admin.events_replay("s", &filter, 0, 100, Some(&actor())).await.expect("a chunk");
    assert_eq!((again.events, again.left_alone), (0, 4));
    let others = admin.events_replay("other", &filter, 0, 100, None).await.expect("a dry run");
    assert_eq!(others.events, 0, "the sink's routes do not take them");
    admin.events_replay("nobody", &filter, 0, 100, None).await.expect_err("no such sink");
    let everything = admin.events_replay("s", &EventFilter::default(), 0, 100, None).await;
    assert_eq!(everything.expect_err("nothing was named").code(), "admin.empty_filter");
}
