//! Each fault does what the table says: a wrapper that is wrong would make green what is red.

use super::{Broker, Fault, Faults, FaultySink, FaultyStore, Op, RecordingSink};
use crate::memory::MemoryDatabase;
use posthaste::event::{Event, StoredEvent, Timestamp};
use posthaste::route::Filter;
use posthaste::sink::{Message, Ordering, Scope, Sink, Verdict};
use posthaste::store::{JoinPlan, LaneId, PageLimit, Settlement, SinkPlan, StartAt, Store, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

const MOMENT: Duration = Duration::from_secs(1);

fn sink() -> (Broker, Faults, FaultySink) {
    let (broker, faults) = (Broker::new(), Faults::none());
    let inner = Arc::new(RecordingSink::new(&broker, "test", Ordering::Call));
    (broker, faults.clone(), FaultySink::new(inner, faults))
}

fn message() -> [Message; 1] {
    let event = Event::new("t", "x").with_key("k");
    let stored = StoredEvent { seq: 1, slot: 0, appended_at: Timestamp(0), event, defect: None };
    [Message {
        stored,
        destination: "t".to_owned(),
        payload: None,
        ordered: true,
        source: "".into(),
        envelope: Default::default(),
        partition_key: None,
    }]
}

#[tokio::test(start_paused = true)]
async fn a_sinks_faults() {
    let table = [
        (Fault::None, 1, "Delivered"),
        (Fault::Refuse, 0, "Retry"),
        (Fault::DoThenFail, 1, "Unknown"),
        (Fault::Duplicate, 2, "Delivered"),
        (Fault::Slow(MOMENT * 2), 1, "Delivered"),
        (Fault::DropAck, 1, "no answer"),
        (Fault::Hold, 0, "no answer"),
    ];
    for (fault, copies, heard) in table {
        let (broker, faults, sink) = sink();
        faults.once(Op::Publish, fault);
        let start = Instant::now();
        let verdicts = timeout(MOMENT * 5, sink.publish(&message())).await;
        let word = match verdicts.as_deref() {
            Ok([Verdict::Delivered]) => "Delivered",
            Ok([Verdict::Retry(failure)]) if failure.scope == Scope::Sink => "Retry",
            Ok([Verdict::Unknown(failure)]) if failure.scope == Scope::Sink => "Unknown",
            Err(_) => "no answer",
            other => panic!("{fault:?}: {other:?}"),
        };
        assert_eq!((broker.deliveries().len(), word), (copies, heard), "{fault:?}");
        assert!(!matches!(fault, Fault::Slow(_)) || start.elapsed() >= MOMENT * 2);
        assert_eq!(sink.publish(&message()).await, [Verdict::Delivered], "only once");
    }
}

#[tokio::test(start_paused = true)]
async fn held_and_frozen_calls_go_on_when_they_are_let() {
    let (broker, faults, sink) = sink();
    faults.always(Op::Publish, Fault::Hold);
    let sink = Arc::new(sink);
    let publish = |sink: &Arc<FaultySink>| {
        let sink = Arc::clone(sink);
        tokio::spawn(async move { sink.publish(&message()).await })
    };
    let held = publish(&sink);
    tokio::time::sleep(MOMENT).await; // pace: virtual time
    assert!(broker.deliveries().is_empty() && !held.is_finished());
    faults.heal();
    assert_eq!(held.await.expect("it ends"), [Verdict::Delivered]);
    faults.freeze();
    let frozen = publish(&sink);
    tokio::time::sleep(MOMENT).await; // pace: virtual time
    assert!(broker.deliveries().len() == 1 && !frozen.is_finished());
    faults.thaw();
    assert_eq!(frozen.await.expect("it ends"), [Verdict::Delivered]);
}

async fn store(database: &MemoryDatabase, faults: &Faults) -> FaultyStore {
    let store = FaultyStore::new(database.store(), faults.clone());
    let sink = SinkPlan { name: "s".into(), filter: Filter::Everything, start_at: StartAt::Earliest };
    let plan = JoinPlan {
        relay: "r".into(),
        sinks: vec![sink],
        routes: String::new(),
        lanes: Some(1),
        lease_ttl: Duration::from_secs(60),
    };
    store.join(&plan).await.expect("no fault yet");
    store
}

#[tokio::test(start_paused = true)]
async fn a_stores_faults() {
    let table = [
        (Fault::Refuse, Some(true), false),
        (Fault::DoThenFail, Some(false), true),
        (Fault::Duplicate, None, true),
        (Fault::Slow(MOMENT), None, true),
    ];
    for (fault, error, applied) in table {
        let (database, faults) = (MemoryDatabase::new(), Faults::none());
        let store = store(&database, &faults).await;
        database.append_now(Event::new("t", "x"));
        let lane = LaneId { sink: "s".into(), lane: 0 };
        let lease = store.take(&lane).await.expect("no fault yet").expect("free");
        let page = lease.read(PageLimit { events: 9, bytes: 9_999 }).await.expect("no fault yet");
        let settlement = Settlement { through: Some(page.number), ..Settlement::default() };
        faults.once(Op::Settle, fault);
        let known = match lease.settle(&settlement).await {
            Ok(()) => None,
            Err(StoreError::Transient { outcome_known, .. }) => Some(outcome_known),
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!((known, database.unsettled("s").is_empty()), (error, applied), "{fault:?}");
        lease.settle(&settlement).await.expect("again, without a fault");
        assert!(database.unsettled("s").is_empty());
        assert_eq!(faults.injected(), 1);
    }
}
