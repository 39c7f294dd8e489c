//! Handlers in another process: what is asked, how often, and what is made of the answers.

use crate::failing::{PATIENCE, at_once, heads, work};
use crate::fixture::{InboxFixture, effect};
use async_trait::async_trait;
use posthaste::consumer::store::{DueHeads, InboxStore, MessageOutcome, Work};
use posthaste::consumer::{Failure, FailureKind, Filter, HandlerError, Message};
use posthaste::event::Event;
use posthaste::inbox::remote::RemoteHandler;
use posthaste_postgres::consumer::{Handler, InboxOptions, OutsideHandler, PostgresInbox};
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, Version};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_postgres::Transaction;

/// Somebody who answers: with one event, or as the message's number says.
#[derive(Default)]
struct Receiver {
    calls: Mutex<Vec<String>>,
    refuses: Mutex<BTreeMap<String, FailureKind>>,
    takes: Duration,
    calls_max: usize,
    /// One answers when it is told to.
    waits: Option<(String, Arc<Notify>, Arc<Notify>)>,
}

impl Receiver {
    fn calls(&self) -> Vec<String> {
        self.calls.lock().expect("no panic").clone()
    }

    fn refuse(&self, id: &str, kind: FailureKind) {
        self.refuses.lock().expect("no panic").insert(id.to_owned(), kind);
    }
}

#[async_trait]
impl RemoteHandler for Receiver {
    async fn call(&self, message: &Message<'_>, _: Duration) -> Result<Vec<Event>, Failure> {
        self.calls.lock().expect("no panic").push(message.id().to_owned());
        tokio::time::sleep(self.takes).await; // the receiver's work
        if let Some((id, is_here, goes_on)) = &self.waits
            && id == message.id()
        {
            is_here.notify_one();
            goes_on.notified().await;
        }
        if let Some(kind) = self.refuses.lock().expect("no panic").get(message.id()) {
            return Err(Failure::new(kind.clone(), "test.refused", "no"));
        }
        Ok(vec![message.event("answers", "{}").with_key(message.id())])
    }

    fn calls_max(&self) -> usize {
        self.calls_max.max(1)
    }
}

/// A handler that runs here, and fails for whom it is told to.
struct Here(Mutex<Vec<String>>);

#[async_trait]
impl Handler for Here {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        if self.0.lock().expect("no panic").iter().any(|id| id == message.id()) {
            return Err(std::io::Error::other("not yet").into());
        }
        effect(tx, message).await
    }
}

async fn outside(fixture: &InboxFixture, receiver: &Arc<Receiver>) -> PostgresInbox {
    fixture.with(OutsideHandler::new("posthaste", Arc::clone(receiver) as _)).await
}

async fn answers(fixture: &InboxFixture) -> i64 {
    let sql = "select count(*) from posthaste.outbox where topic = 'answers'";
    fixture.rows(sql, &[]).await[0].get(0)
}

/// Messages of one key.
fn of_one_key(positions: &[i64]) -> Vec<Work> {
    let mut works: Vec<Work> = positions.iter().map(|position| work(*position)).collect();
    let order_id = works[0].order_id;
    works.iter_mut().for_each(|work| work.order_id = order_id);
    works
}

fn due(timeout: Duration) -> DueHeads {
    DueHeads { handler_timeout: timeout, ..heads(vec![0; 5]) }
}

/// F50: what was answered is committed whatever becomes of the others, so that no old answer is taken for a
/// sign of life. The one that was refused shows alone how it does, and nobody is asked twice.
#[tokio::test(flavor = "multi_thread")]
async fn f50_answers_are_committed_beside_a_refusal() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let receiver = Arc::new(Receiver { calls_max: 16, ..Receiver::default() });
    receiver.refuse("m2", FailureKind::Unavailable("bank".into()));
    receiver.refuse("m4", FailureKind::Error);
    let inbox = outside(&fixture, &receiver).await;
    let behind = of_one_key(&[4, 5]);
    let batch = [&[work(1)][..], &behind].concat();
    let applied = inbox.apply(None, &batch, PATIENCE).await.expect("committed");
    let again = MessageOutcome::Again;
    assert_eq!(applied.outcomes, [MessageOutcome::Done, again, again]);
    assert_eq!((receiver.calls(), answers(&fixture).await), (vec!["m1".to_owned(), "m4".to_owned()], 1));
    let alone = inbox.apply(None, &behind[..1], PATIENCE).await.expect_err("it is refused");
    assert_eq!((alone.at, alone.failure.kind), (Some(0), FailureKind::Error));
    assert_eq!(receiver.calls().len(), 2, "the refusal was known");
    let applied = inbox.apply(None, &[work(2), work(3)], PATIENCE).await.expect("committed");
    assert_eq!(applied.outcomes[0], again);
    let away = inbox.apply(None, &[work(2)], PATIENCE).await.expect_err("it is away");
    assert_eq!(away.failure.kind, FailureKind::Unavailable("bank".into()));
}

/// G3: a message outside is not asked about before what runs here in front of it has committed.
#[tokio::test(flavor = "multi_thread")]
async fn g3_handlers_of_both_kinds_keep_the_order_of_a_key() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let receiver = Arc::new(Receiver { calls_max: 16, ..Receiver::default() });
    let here = Arc::new(Here(Mutex::new(vec!["m1".to_owned()])));
    let is_here = Filter { types: vec!["here".to_owned()], ..Filter::default() };
    let outside: Arc<dyn Handler> = Arc::new(OutsideHandler::new("posthaste", Arc::clone(&receiver) as _));
    let handlers: posthaste_postgres::consumer::Handlers =
        vec![(is_here, Arc::clone(&here) as _), (Filter::default(), outside)];
    let inbox = PostgresInbox::connect(fixture.config(), InboxOptions::new("billing"), handlers).await;
    let inbox = inbox.expect("the inbox connects");
    let mut batch = of_one_key(&[1, 2, 3]);
    let first = Arc::make_mut(&mut batch[0].delivery);
    first.message.headers.push(("type".to_owned(), bytes::Bytes::from_static(b"here")));
    let failed = inbox.apply(None, &batch, PATIENCE).await.expect_err("the first one fails");
    assert_eq!((failed.at, receiver.calls()), (Some(0), vec![]), "nobody is asked about what is behind it");
    let aside = inbox.defer(None, &batch, &at_once()).await.expect("deferred");
    assert_eq!(aside.outcomes.len(), 3);
    inbox.apply_deferred(&heads(vec![3_600_000; 5])).await.expect("a look");
    assert_eq!(receiver.calls(), Vec::<String>::new(), "nor among the deferred");
    here.0.lock().expect("no panic").clear();
    fixture.run("update posthaste.inbox_deferred set due_at = now() where isfinite(due_at)").await;
    while !fixture.deferred("billing").await.is_empty() {
        inbox.apply_deferred(&due(PATIENCE)).await.expect("a look");
    }
    assert_eq!(fixture.effects("billing").await, ["m1"]);
    assert_eq!(receiver.calls(), ["m2", "m3"]);
}

/// Requests that wait for their turn for too long are not sent: another member may have the row by then.
#[tokio::test(flavor = "multi_thread")]
async fn g4_what_is_claimed_and_has_no_turn_in_time_is_not_asked() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let takes = Duration::from_millis(200);
    let receiver = Arc::new(Receiver { takes, ..Receiver::default() });
    let inbox = outside(&fixture, &receiver).await;
    for position in 1..=12 {
        inbox.defer(None, &[work(position)], &at_once()).await.expect("deferred");
    }
    inbox.apply_deferred(&due(takes * 3)).await.expect("a look");
    let first = receiver.calls().len();
    assert!(first < 12, "the rest has to wait for another look: {first}");
    while !fixture.deferred("billing").await.is_empty() {
        inbox.apply_deferred(&due(takes * 3)).await.expect("a look");
    }
    let mut calls = receiver.calls();
    calls.sort();
    calls.dedup();
    assert_eq!((calls.len(), receiver.calls().len(), answers(&fixture).await), (12, 12, 12), "each once");
}

/// A row that is gone when its answer comes, by an operator who cancels a replay, stops nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_goes_while_its_handler_is_asked_stops_nobody() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let (is_here, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let waits = Some(("m1".to_owned(), Arc::clone(&is_here), Arc::clone(&goes_on)));
    let receiver = Arc::new(Receiver { waits, ..Receiver::default() });
    let inbox = Arc::new(outside(&fixture, &receiver).await);
    inbox.defer(None, &[work(1)], &at_once()).await.expect("deferred");
    let look = tokio::spawn({
        let inbox = Arc::clone(&inbox);
        async move { inbox.apply_deferred(&due(PATIENCE)).await.map(drop) }
    });
    is_here.notified().await;
    fixture.run("delete from posthaste.inbox_deferred").await;
    goes_on.notify_one();
    look.await.expect("no panic").expect("a look that found nothing to bring in");
    assert_eq!(answers(&fixture).await, 0);
}

/// One whose event cannot be appended is recorded, and its neighbours are asked once.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_appended_repeats_no_neighbours_request() {
    let Some(fixture) = InboxFixture::make().await else { return };
    fixture
        .run(
            "create function refuse() returns trigger language plpgsql as $$ begin
               if new.key = 'm2' then raise exception 'not this one'; end if; return new; end $$;
             create trigger refuse before insert on posthaste.outbox for each row execute function refuse()",
        )
        .await;
    let receiver = Arc::new(Receiver { calls_max: 16, ..Receiver::default() });
    let inbox = outside(&fixture, &receiver).await;
    for position in 1..=3 {
        inbox.defer(None, &[work(position)], &at_once()).await.expect("deferred");
    }
    for _ in 0..20 {
        inbox.apply_deferred(&due(PATIENCE)).await.expect("a look");
    }
    let asked = |id: &str| receiver.calls().iter().filter(|called| *called == id).count();
    assert_eq!((asked("m1"), asked("m3"), answers(&fixture).await), (1, 1, 2));
    let letters = fixture.letters("billing").await;
    assert_eq!(letters.iter().map(|letter| &*letter.id).collect::<Vec<_>>(), ["m2"], "it is given up");
    assert_eq!(asked("m2"), 6, "once for each attempt");
}

/// F30: somebody holds the key of a message that was refused. What its neighbours were told is brought in,
/// and they are not asked twice.
#[tokio::test(flavor = "multi_thread")]
async fn f30_a_refusal_that_cannot_be_written_costs_no_neighbour_its_answer() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let receiver = Arc::new(Receiver { calls_max: 16, ..Receiver::default() });
    receiver.refuse("m1", FailureKind::Error);
    let inbox = outside(&fixture, &receiver).await;
    for position in 1..=5 {
        inbox.defer(None, &[work(position)], &at_once()).await.expect("deferred");
    }
    let mut client = fixture.client().await;
    let lock = client.transaction().await.expect("a transaction");
    let sql = "select pg_advisory_xact_lock(1347375956, hashtext(consumer || chr(31) || topic || chr(31) || order_id::text))
                 from posthaste.inbox_deferred where message_id = 'm1'";
    assert_eq!(lock.query(sql, &[]).await.expect("a lock").len(), 1);
    // Whether the lock is told as an error is the same to them.
    let _ = inbox.apply_deferred(&due(PATIENCE)).await;
    assert_eq!((fixture.deferred("billing").await.len(), answers(&fixture).await), (1, 4));
    lock.rollback().await.expect("the lock goes");
    fixture.run("update posthaste.inbox_deferred set due_at = now()").await;
    inbox.apply_deferred(&due(PATIENCE)).await.expect("a look");
    let asked = |id: &str| receiver.calls().iter().filter(|called| *called == id).count();
    assert!((2..=5).all(|n| asked(&format!("m{n}")) == 1), "{:?}", receiver.calls());
}

/// F6: the server went back in time between the answer and what is written about it. Somebody is asked again.
#[tokio::test(flavor = "multi_thread")]
async fn f6_an_answer_to_another_life_of_the_database_is_none() {
    let mut server = require_service!(Postgres::start(Version::tested(), &PostgresOptions::default()).await);
    let fixture = InboxFixture::on(&server).await;
    let (is_here, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let waits = Some(("m1".to_owned(), Arc::clone(&is_here), Arc::clone(&goes_on)));
    let receiver = Arc::new(Receiver { waits, ..Receiver::default() });
    let inbox = Arc::new(outside(&fixture, &receiver).await);
    inbox.defer(None, &[work(1)], &at_once()).await.expect("deferred");
    let look = tokio::spawn({
        let inbox = Arc::clone(&inbox);
        async move { inbox.apply_deferred(&due(Duration::from_secs(1))).await.map(drop) }
    });
    is_here.notified().await;
    server.stop_fast().await.expect("the server stops");
    server.start_again().await.expect("the server starts");
    goes_on.notify_one();
    // Its connection may have been found dead: that is an answer, too.
    let _ = look.await.expect("no panic");
    assert_eq!(answers(&fixture).await, 0, "what was answered before speaks of another database");
    goes_on.notify_one();
    posthaste_testkit::conformance::eventually("asked again", PATIENCE, || async {
        let _ = inbox.apply_deferred(&due(Duration::from_secs(1))).await; // until the claim has ended
        fixture.deferred("billing").await.is_empty().then_some(())
    })
    .await;
    assert_eq!((receiver.calls().len(), answers(&fixture).await), (2, 1));
}

/// A handler that was wrapped by one that runs here is never asked: that is said, and no message is marked.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_was_not_asked_has_not_handled_anything() {
    struct Wrapped(OutsideHandler);
    #[async_trait]
    impl Handler for Wrapped {
        async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
            self.0.handle(tx, message).await
        }
    }
    let Some(fixture) = InboxFixture::make().await else { return };
    let receiver = Arc::new(Receiver::default());
    let inbox = fixture.with(Wrapped(OutsideHandler::new("posthaste", Arc::clone(&receiver) as _))).await;
    let failed = inbox.apply(None, &[work(1)], PATIENCE).await.expect_err("it was not asked");
    assert!(failed.failure.message.contains("not asked"), "{}", failed.failure.message);
    assert!(fixture.marks("billing").await.is_empty());
}
