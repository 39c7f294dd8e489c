//! Handlers that take several messages at once.

use crate::failing::{PATIENCE, at_once, heads, work};
use crate::fixture::{InboxFixture, effect};
use async_trait::async_trait;
use bytes::Bytes;
use posthaste::clock::SystemClock;
use posthaste::consumer::store::{InboxStore, MessageOutcome, SetAside, Work};
use posthaste::consumer::{
    ConsumerPlan, ConsumerSettings, Disposition, FailureKind, HandlerError, Message, start,
};
use posthaste::relay::DrainOutcome;
use posthaste::source::{Received, StartFrom};
use posthaste_postgres::consumer::{Failed, Handler};
use posthaste_testkit::broker::{BrokerKind, MemoryBroker};
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use posthaste_testkit::conformance::eventually;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio_postgres::Transaction;

/// The one that no handler here takes.
const BAD: &str = "m5";

/// What a handler says of a batch with the bad one in it.
#[derive(Clone, Copy, PartialEq)]
enum Says {
    /// Which it is.
    Whose,
    /// That there is one.
    Nobody,
    /// That it wants them one by one, as every handler does that has no better way.
    OneByOne,
}

/// One INSERT for a batch, and what it was called with.
#[derive(Clone)]
struct SetWise {
    says: Says,
    calls: Arc<Mutex<Vec<Vec<String>>>>,
}

impl SetWise {
    fn new(says: Says) -> Self {
        Self { says, calls: Arc::default() }
    }

    fn note(&self, ids: &[&str]) {
        self.calls.lock().expect("no panic").push(ids.iter().map(|id| (*id).to_owned()).collect());
    }

    /// How many were in each call.
    fn sizes(&self) -> Vec<usize> {
        self.calls.lock().expect("no panic").iter().map(Vec::len).collect()
    }

    /// How many were in each call that the bad one was in.
    fn sizes_with_bad(&self) -> Vec<usize> {
        let calls = self.calls.lock().expect("no panic");
        calls.iter().filter(|ids| ids.iter().any(|id| id == BAD)).map(Vec::len).collect()
    }
}

fn no() -> HandlerError {
    HandlerError::reject("test.no", "never")
}

#[async_trait]
impl Handler for SetWise {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        self.note(&[message.id()]);
        effect(tx, message).await?;
        if message.id() == BAD { Err(no()) } else { Ok(()) }
    }

    async fn handle_all(&self, tx: &mut Transaction<'_>, batch: &[Message<'_>]) -> Result<(), Failed> {
        if self.says == Says::OneByOne {
            return Err(Failed::OneByOne);
        }
        let ids: Vec<&str> = batch.iter().map(Message::id).collect();
        self.note(&ids);
        let insert = "insert into effects (consumer, id) select 'billing', unnest($1::text[])";
        tx.execute(insert, &[&ids]).await.map_err(|error| Failed::Together(error.into()))?;
        match ids.iter().position(|id| *id == BAD) {
            Some(at) if self.says == Says::Whose => Err(Failed::At(at, no())),
            Some(_) => Err(Failed::Together(no())),
            None => Ok(()),
        }
    }
}

/// A batch that fails left nothing behind. Whose failure it is, is what the handler says of several, and
/// plain of one.
#[tokio::test(flavor = "multi_thread")]
async fn f28_a_batch_names_the_message_that_failed_or_none() {
    for (says, named, calls) in
        [(Says::Whose, Some(2), 1), (Says::Nobody, None, 1), (Says::OneByOne, Some(2), 3)]
    {
        let Some(fixture) = InboxFixture::make().await else { return };
        let handler = SetWise::new(says);
        let inbox = fixture.with(handler.clone()).await;
        let batch: Vec<Work> = [3, 4, 5, 6].map(work).into();
        let rejected = FailureKind::Poison(Disposition::Rejected);
        let error = inbox.apply(None, &batch, PATIENCE).await.expect_err("it fails");
        assert_eq!((error.at, &error.failure.kind), (named, &rejected));
        assert_eq!(handler.sizes().len(), calls, "{:?}", handler.sizes());
        let error = inbox.apply(None, &batch[2..3], PATIENCE).await.expect_err("alone, too");
        assert_eq!((error.at, &error.failure.kind), (Some(0), &rejected));
        assert!(fixture.effects("billing").await.is_empty() && fixture.marks("billing").await.is_empty());
        let good = [3, 4, 6].map(work);
        let applied = inbox.apply(None, &good, PATIENCE).await.expect("the others are fine");
        assert_eq!(applied.outcomes, [MessageOutcome::Done; 3]);
        assert_eq!(fixture.effects("billing").await, ["m3", "m4", "m6"]);
    }
}

/// The whole way: the others of the batch are done once each, and the bad one alone is dead, whether it was
/// named or found by halves.
#[tokio::test(flavor = "multi_thread")]
async fn f28_the_message_that_fails_a_batch_is_found() {
    for says in [Says::Whose, Says::Nobody, Says::OneByOne] {
        let Some(fixture) = InboxFixture::make().await else { return };
        let broker = MemoryBroker::new(BrokerKind::Log, 1_000);
        broker.declare("orders", 1);
        for n in 0..8 {
            let (id, key) = (Some(format!("m{n}")), Some(Bytes::from(format!("k{n}"))));
            let payload = Some(Bytes::from_static(b"{}"));
            broker.publish("orders", Received { id, key, payload, ..Received::default() });
        }
        let handler = SetWise::new(says);
        let store = Arc::new(fixture.with(handler.clone()).await);
        let source = Arc::new(broker.join("billing", "orders", "one", StartFrom::Earliest, PATIENCE));
        let plan = ConsumerPlan::new("billing", source, store);
        let settings = ConsumerSettings { transactions_max: 1, ..ConsumerSettings::default() };
        let (_settings, settings) = watch::channel(settings);
        let consumer = start(plan, settings, Arc::new(SystemClock));
        eventually("everything is decided", PATIENCE, || async {
            (fixture.marks("billing").await.len() == 8).then_some(())
        })
        .await;
        assert_eq!(consumer.drain().await, DrainOutcome::Clean);
        let mut effects = fixture.effects("billing").await;
        effects.sort();
        assert_eq!(effects, ["m0", "m1", "m2", "m3", "m4", "m6", "m7"]);
        let letters = fixture.letters("billing").await;
        let dead: Vec<(&str, u32)> =
            letters.iter().map(|letter| (letter.id.as_str(), letter.attempts)).collect();
        assert_eq!(dead, [(BAD, 1)], "in company it counted for nobody");
        let sizes = handler.sizes_with_bad();
        match says {
            Says::Whose => assert_eq!(sizes, [8, 1], "it was named, and ran alone at once"),
            Says::Nobody => {
                let halves = sizes.windows(2).all(|pair| pair[1] <= pair[0]);
                assert!(sizes[0] == 8 && halves && sizes.ends_with(&[1]) && sizes.len() > 3, "{sizes:?}");
            }
            Says::OneByOne => assert_eq!(sizes, [1, 1], "{:?}", handler.sizes()),
        }
    }
}

/// Deferred messages fail together as fresh ones do: in company it counts for nobody, also when a look begins
/// with all of them at once because the last one went well.
#[tokio::test(flavor = "multi_thread")]
async fn f28_deferred_messages_that_fail_together_are_looked_at_alone() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let handler = SetWise::new(Says::Nobody);
    let inbox = fixture.with(handler.clone()).await;
    for works in [vec![20, 21], (0..8).collect()] {
        for position in works {
            let kept = inbox.defer(None, &[work(position)], &at_once()).await.expect("deferred");
            assert_eq!(kept.outcomes, [SetAside::Kept]);
        }
        eventually("everything is decided", PATIENCE, || async {
            inbox.apply_deferred(&heads(vec![0, 0])).await.expect("a look");
            fixture.deferred("billing").await.is_empty().then_some(())
        })
        .await;
    }
    assert_eq!(handler.sizes_with_bad(), [8, 1], "all at once, and then alone");
    let letters = fixture.letters("billing").await;
    let dead: Vec<(&str, u32)> = letters.iter().map(|letter| (letter.id.as_str(), letter.attempts)).collect();
    assert_eq!(dead, [(BAD, 1)]);
    assert_eq!(fixture.effects("billing").await.len(), 9);
}
