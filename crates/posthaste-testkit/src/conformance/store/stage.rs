//! What the cases are played with: relays, events, deferrals.

use super::{OpenTransaction, StoreFixture};
use posthaste::event::{Event, StoredEvent};
use posthaste::route::Filter;
use posthaste::store::{
    Death, Deferral, Due, DueBatch, DueQuery, ErrorClass, JoinPlan, LaneId, Lease, Page, PageLimit, Reason,
    Settlement, SinkPlan, StartAt, Store,
};
use std::sync::Arc;
use std::time::Duration;

/// The sink of most cases.
pub(super) const SINK: &str = "s";

/// A lease time that never ends within a case.
pub(super) const LONG: Duration = Duration::from_secs(120);

/// A page limit that never matters.
pub(super) const WIDE: PageLimit = PageLimit { events: 10_000, bytes: 64 << 20 };

/// A relay that joined.
pub(super) struct Relay {
    pub(super) store: Arc<dyn Store>,
    pub(super) plan: JoinPlan,
}

/// A plan with one sink that reads everything from the beginning, on one lane.
pub(super) fn plan(relay: &str) -> JoinPlan {
    JoinPlan {
        relay: relay.into(),
        sinks: vec![sink(SINK, Filter::Everything, StartAt::Earliest)],
        routes: "{\"s\":[\"*\"]}".to_owned(),
        lanes: Some(1),
        lease_ttl: LONG,
    }
}

pub(super) fn sink(name: &str, filter: Filter, start_at: StartAt) -> SinkPlan {
    SinkPlan { name: name.into(), filter, start_at }
}

pub(super) fn lane(sink: &str, lane: i16) -> LaneId {
    LaneId { sink: sink.into(), lane }
}

/// A relay with the usual plan.
pub(super) async fn relay(fixture: &impl StoreFixture, name: &str) -> Relay {
    relay_with(fixture, plan(name)).await
}

pub(super) async fn relay_with(fixture: &impl StoreFixture, plan: JoinPlan) -> Relay {
    let store = fixture.store().await;
    store.join(&plan).await.expect("the relay joins");
    Relay { store, plan }
}

impl Relay {
    /// Takes a lane that must be free.
    pub(super) async fn take(&self, id: &LaneId) -> Arc<dyn Lease> {
        self.store.take(id).await.expect("the store answers").expect("the lane is free")
    }

    /// Takes the usual lane.
    pub(super) async fn lease(&self) -> Arc<dyn Lease> {
        self.take(&lane(SINK, 0)).await
    }
}

/// Takes the usual lane as soon as it is free, asking the roll as a relay does.
pub(super) async fn take_when_free(relay: &Relay) -> Arc<dyn Lease> {
    super::super::eventually("the lane is free and can be taken", super::super::DEADLINE, || async {
        let roll = relay.store.roll(&[]).await.expect("the store answers");
        let free = roll.lanes.iter().any(|view| view.id == lane(SINK, 0) && view.is_free);
        if free { relay.store.take(&lane(SINK, 0)).await.expect("the store answers") } else { None }
    })
    .await
}

pub(super) fn event(payload: &str) -> Event {
    Event::new("t", payload.to_owned())
}

pub(super) fn keyed(key: &str, payload: &str) -> Event {
    event(payload).with_key(key)
}

/// Appends in a transaction of its own.
pub(super) async fn append(fixture: &impl StoreFixture, event: Event) -> i64 {
    let mut tx = fixture.begin().await;
    let seq = tx.append(event).await;
    tx.commit().await;
    seq
}

/// Appends several without a key, each in a transaction of its own.
pub(super) async fn append_many(fixture: &impl StoreFixture, count: usize) -> Vec<i64> {
    let mut seqs = Vec::with_capacity(count);
    for n in 0..count {
        seqs.push(append(fixture, event(&n.to_string())).await);
    }
    seqs
}

/// Appends several in an open transaction.
pub(super) async fn append_to(tx: &mut Box<dyn OpenTransaction>, count: usize) -> Vec<i64> {
    let mut seqs = Vec::with_capacity(count);
    for n in 0..count {
        seqs.push(tx.append(event(&n.to_string())).await);
    }
    seqs
}

pub(super) async fn read(lease: &Arc<dyn Lease>, limit: PageLimit) -> Page {
    lease.read(limit).await.expect("the read succeeds")
}

/// Reads until nothing is left, and answers with the pages that held something.
pub(super) async fn read_pages(lease: &Arc<dyn Lease>, limit: PageLimit) -> Vec<Page> {
    let mut pages = Vec::new();
    for _ in 0..10_000 {
        let page = read(lease, limit).await;
        let done = page.events.is_empty() && !page.more;
        if !page.events.is_empty() {
            pages.push(page);
        }
        if done {
            return pages;
        }
    }
    panic!("the lane never ran dry");
}

/// Reads everything there is, as numbers.
pub(super) async fn read_all(lease: &Arc<dyn Lease>) -> Vec<i64> {
    read_pages(lease, WIDE).await.iter().flat_map(seqs).collect()
}

pub(super) fn seqs(page: &Page) -> Vec<i64> {
    page.events.iter().map(|stored| stored.seq).collect()
}

/// Reads one event that must be the next one.
pub(super) async fn read_one(lease: &Arc<dyn Lease>) -> (u64, StoredEvent) {
    for _ in 0..100 {
        let mut page = read(lease, PageLimit { events: 1, bytes: WIDE.bytes }).await;
        if let Some(stored) = page.events.pop() {
            return (page.number, stored);
        }
        assert!(page.more, "there is an event to read");
    }
    panic!("the store says there is more and gives nothing");
}

pub(super) fn through(page: u64) -> Settlement {
    Settlement { through: Some(page), ..Settlement::default() }
}

pub(super) async fn settle(lease: &Arc<dyn Lease>, settlement: Settlement) {
    lease.settle(&settlement).await.expect("the settlement is accepted");
}

/// A deferral that holds its key.
pub(super) fn wait(reason: Reason, due: Due) -> Deferral {
    Deferral {
        reason,
        due,
        attempts: 0,
        class: None,
        code: None,
        error: None,
        route: "r".into(),
        destination: "d".to_owned(),
        holds_when_dead: false,
        holds: reason.holds(),
    }
}

pub(super) fn at_once() -> Due {
    Due::In(Duration::ZERO)
}

pub(super) fn death(holds: bool) -> Death {
    Death {
        attempts: 3,
        class: ErrorClass::Permanent,
        code: "test.no".to_owned(),
        error: "no".to_owned(),
        route: "r".into(),
        holds,
    }
}

/// A page of these events, read and settled so that each waits.
pub(super) async fn defer_page(
    lease: &Arc<dyn Lease>,
    mut deferral: impl FnMut(&StoredEvent) -> Deferral,
) -> Vec<i64> {
    let page = read(lease, WIDE).await;
    let seqs = seqs(&page);
    let deferred = page.events.into_iter().map(|stored| {
        let deferral = deferral(&stored);
        (stored, deferral)
    });
    let deferred = deferred.collect();
    settle(lease, Settlement { deferred, ..through(page.number) }).await;
    seqs
}

pub(super) fn anything() -> DueQuery {
    DueQuery { events: 1_000, bytes: WIDE.bytes, ..DueQuery::default() }
}

pub(super) async fn due_batch(lease: &Arc<dyn Lease>, query: DueQuery) -> DueBatch {
    lease.due(query).await.expect("the store answers")
}

/// Numbers of what is due: the first of each key. A store may hand out the run that waits behind it too.
pub(super) async fn due(lease: &Arc<dyn Lease>) -> Vec<i64> {
    let batch = due_batch(lease, anything()).await;
    let mut keys = std::collections::HashSet::new();
    let first =
        |due: &&posthaste::store::DueEvent| due.stored.event.key.clone().is_none_or(|key| keys.insert(key));
    batch.events.iter().filter(first).map(|due| due.stored.seq).collect()
}

/// Settles deferred events as delivered.
pub(super) async fn deliver_deferred(lease: &Arc<dyn Lease>, seqs: &[i64]) {
    settle(lease, Settlement { delivered: seqs.to_vec(), ..Settlement::default() }).await;
}
