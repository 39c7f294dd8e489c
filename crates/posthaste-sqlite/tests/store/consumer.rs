//! The consumer's inbox on files: what is SQLite's own.

use crate::fixture::{SqliteFixture, connect};
use bytes::Bytes;
use posthaste::admin::history::History;
use posthaste::admin::{Admin, Control, ControlTarget, DeadAct, DeadFilter, DeferredFilter};
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::consumer::identity::order_id;
use posthaste::consumer::store::{
    ApplyError, Burial, ConsumerRetention, DeferOrBury, DueHeads, InboxError, InboxStore, MessageOutcome,
    SavedPosition, Witness, Work,
};
use posthaste::consumer::{
    ConsumerRetry, DeadLetterTopic, Disposition, Failure, FailureKind, Filter, HandlerError, Message, Order,
};
use posthaste::inbox::kept::KeptHeaders;
use posthaste::source::{Delivery, Partition, Received, Ticket};
use posthaste_sqlite::SqliteAdmin;
use posthaste_sqlite::consumer::{Failed, Handler, InboxOptions, SqliteInbox, inbox};
use posthaste_sqlite::writer::Writer;
use rusqlite::{Connection, Transaction};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(60);

/// A handler made of a function, which writes the message's id down first.
struct Act<F>(F);

impl<F> Handler for Act<F>
where
    F: Fn(&Transaction<'_>, &Message<'_>) -> Result<(), HandlerError> + Send + Sync + 'static,
{
    fn handle(&self, tx: &Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        tx.execute("insert into effects (id) values (?1)", [message.id()])?;
        (self.0)(tx, message)
    }
}

pub(crate) struct Ground {
    pub(crate) fixture: SqliteFixture,
}

impl Ground {
    pub(crate) async fn make() -> Self {
        let fixture = SqliteFixture::make().await.expect("a file");
        let tables = "create table accounts (id text primary key);
                      create table effects (id text not null, account text references accounts deferrable initially deferred)";
        fixture.connect().execute_batch(tables).expect("tables of the service");
        Self { fixture }
    }

    pub(crate) fn writer(&self) -> Writer {
        Writer::open(&self.fixture.path(), Default::default()).expect("opened")
    }

    fn inbox<F>(&self, act: F) -> SqliteInbox
    where
        F: Fn(&Transaction<'_>, &Message<'_>) -> Result<(), HandlerError> + Send + Sync + 'static,
    {
        inbox(self.writer(), InboxOptions::new("billing"), Act(act))
    }

    pub(crate) fn count(&self, sql: &str) -> i64 {
        self.fixture.connect().query_row(sql, [], |row| row.get(0)).expect("counted")
    }

    pub(crate) fn texts(&self, sql: &str) -> Vec<String> {
        let connection: Connection = connect(&self.fixture.path());
        let mut statement = connection.prepare(sql).expect("a statement");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.collect::<Result<_, _>>().expect("texts")
    }

    pub(crate) fn effects(&self) -> Vec<String> {
        self.texts("select id from effects order by rowid")
    }

    pub(crate) fn marks(&self) -> Vec<String> {
        self.texts("select message_id || '=' || outcome from posthaste_inbox order by message_id")
    }
}

fn work_with(position: i64, key: &str, id: &str, message: Received) -> Work {
    let delivery = Delivery {
        ticket: Ticket { partition: Partition::new("orders", 0), epoch: 1, number: position },
        position: Some(position),
        redelivery: None,
        published_at: None,
        address: None,
        message: Received { key: Some(Bytes::from(key.to_owned())), ..message },
    };
    let order_id = order_id(Order::Key, &delivery);
    Work { delivery: Arc::new(delivery), id: id.into(), order_id, attempts: 0, history: History::default() }
}

/// A message of a key, with the id `a1`.
pub(crate) fn work(key: &str, position: i64) -> Work {
    work_with(position, key, &format!("{key}{position}"), Received::default())
}

pub(crate) fn failure(message: &str) -> Failure {
    Failure::new(FailureKind::Error, "handler.error", message)
}

pub(crate) fn heads() -> DueHeads {
    DueHeads {
        messages_max: 64,
        handler_time_max: PATIENCE,
        handler_timeout: PATIENCE,
        retry: ConsumerRetry { delays_ms: vec![0, 0], then: None },
        dead_hold: false,
        unavailable_pause: Duration::ZERO,
        careful: false,
        chance: 0.0,
    }
}

fn error(answer: Result<impl std::fmt::Debug, ApplyError>) -> ApplyError {
    answer.expect_err("it fails")
}

/// F68: the thread lives on, and nothing of the batch happened.
#[tokio::test]
async fn f68_a_panic_is_told_and_the_thread_lives() {
    let ground = Ground::make().await;
    let inbox = ground.inbox(|_, message| {
        assert!(message.id() != "b2" || message.attempt() > 1, "on purpose");
        Ok(())
    });
    let error = error(inbox.apply(None, &[work("a", 1), work("b", 2), work("c", 3)], PATIENCE).await);
    assert_eq!((error.at, error.failure.kind), (Some(1), FailureKind::Panic));
    assert!(error.failure.message.contains("on purpose"), "{}", error.failure.message);
    assert_eq!((ground.effects().len(), ground.marks().len()), (0, 0));
    let second = Work { attempts: 1, ..work("b", 2) };
    assert_eq!(
        inbox.apply(None, &[second], PATIENCE).await.expect("applied").outcomes,
        [MessageOutcome::Done]
    );
    assert_eq!(ground.effects(), ["b2"]);
}

/// A deferred foreign key fails at the commit: nobody's fault, or the only one's.
#[tokio::test]
async fn a_deferred_constraint_names_nobody_in_company() {
    let ground = Ground::make().await;
    let inbox = ground.inbox(|tx, message| {
        if message.id() == "b2" {
            tx.execute("insert into effects (id, account) values ('x', 'nobody')", [])?;
        }
        Ok(())
    });
    let company = error(inbox.apply(None, &[work("a", 1), work("b", 2)], PATIENCE).await);
    assert_eq!((company.at, &company.failure.kind), (None, &FailureKind::Error), "{:?}", company.failure);
    let alone = error(inbox.apply(None, &[work("b", 2)], PATIENCE).await);
    assert_eq!((alone.at, alone.failure.kind), (Some(0), FailureKind::Error));
    assert_eq!((ground.effects().len(), ground.marks().len()), (0, 0));
    // The same among the deferred: the innocent one is done, the other one is charged.
    for work in [work("a", 1), work("b", 2)] {
        let how = DeferOrBury::Defer { delay: Duration::ZERO, failure: failure("later") };
        inbox.defer(None, &[work], &how).await.expect("deferred");
    }
    let (mut done, mut buried) = (0, 0);
    for _ in 0..9 {
        let look = inbox.apply_deferred(&heads()).await.expect("a look");
        (done, buried) = (done + look.done(), buried + look.buried());
    }
    assert_eq!((done, buried, ground.effects()), (1, 1, vec!["a1".to_owned()]));
    assert_eq!(ground.marks(), ["a1=d", "b2=x"]);
}

#[tokio::test]
async fn an_id_twice_in_a_batch_runs_once() {
    let ground = Ground::make().await;
    let inbox = ground.inbox(|_, _| Ok(()));
    let batch = [work("a", 1), work_with(2, "a", "a1", Received::default()), work("a", 3)];
    let outcomes = inbox.apply(None, &batch, PATIENCE).await.expect("applied").outcomes;
    assert_eq!(outcomes, [MessageOutcome::Done, MessageOutcome::Duplicate, MessageOutcome::Done]);
    assert_eq!(ground.effects(), ["a1", "a3"]);
}

/// F71, F86: whatever was sent is in the letter, byte for byte, and its event is in the outbox.
#[tokio::test]
async fn f71_poison_is_intact_in_its_letter() {
    let ground = Ground::make().await;
    let topic = DeadLetterTopic { topic: "dead.billing".into(), key: Some("{partition}".into()) };
    let options = InboxOptions { dead_letters: Some(topic), ..InboxOptions::new("billing") };
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let see = Arc::clone(&seen);
    let handler = Act(move |_: &Transaction<'_>, message: &Message<'_>| {
        see.lock().expect("no panic").push((**message).clone());
        Ok(())
    });
    let inbox = inbox(ground.writer(), options, handler);
    let payloads = [
        Some(Bytes::from_static(br#"{"a": "\u0000"}"#)),
        Some(Bytes::from_static(b"\xff\xfe\0{")),
        Some(Bytes::new()),
        None,
        Some(Bytes::from(vec![7; 5 << 20])),
    ];
    let mut sent = Vec::new();
    for (n, payload) in payloads.into_iter().enumerate() {
        let headers = vec![
            ("h".to_owned(), Bytes::from_static(b"\xff\0")),
            ("h".to_owned(), Bytes::from_static(b"again")),
        ];
        let message = Received { id: Some(format!("m{n}")), headers, payload, key: None };
        let work = work_with(n as i64, "k\0", &format!("m{n}"), message);
        let error = "a text with \0 and without end ".repeat(1_000);
        let burial = Burial {
            letter: Uuid::now_v7(),
            disposition: Disposition::Decode,
            failure: failure(&error).with_stack(Some("deep".into())),
            holds_key: false,
        };
        inbox
            .defer(None, std::slice::from_ref(&work), &DeferOrBury::Bury(burial.clone()))
            .await
            .expect("buried");
        sent.push((burial.letter, work));
    }
    let events = ground.texts("select id from posthaste_outbox where topic = 'dead.billing' order by seq");
    assert_eq!(events, sent.iter().map(|(letter, _)| letter.to_string()).collect::<Vec<_>>());
    assert_eq!(ground.count("select count(*) from posthaste_outbox where length(payload) > 1048576"), 0);
    let admin = SqliteAdmin::new(ground.fixture.config());
    let shown = admin.letters("billing", &DeadFilter::default(), None, 100).await.expect("a list");
    assert_eq!(shown.len(), sent.len());
    let newest = admin.letters_newest("billing", &DeadFilter::default(), None, 2).await.expect("a page");
    let older = admin.letters_newest("billing", &DeadFilter::default(), Some(newest[1].letter), 100).await;
    let backwards = newest.iter().chain(older.as_ref().expect("a page")).map(|letter| letter.letter);
    assert!(backwards.eq(shown.iter().rev().map(|letter| letter.letter)));
    for (shown, (letter, work)) in shown.iter().zip(&sent) {
        assert_eq!((shown.letter, &*shown.id, shown.position), (*letter, &*work.id, work.delivery.position));
        let length = work.delivery.message.payload.as_ref().map(|payload| payload.len() as i64);
        assert_eq!((&shown.payload, shown.payload_bytes), (&None, length), "a list has no payloads");
        let whole = admin.letter("billing", &letter.to_string()).await.expect("the letter");
        assert_eq!(whole[0].payload.as_deref(), work.delivery.message.payload.as_deref());
        let first = [shown.headers[0][0].as_str(), shown.stack.as_deref(), shown.key.as_deref()];
        assert_eq!(first, [Some("h"), Some("deep"), Some("k\0")]);
    }
    let causes = admin.letter_causes("billing", &DeadFilter::default(), 9).await.expect("causes");
    assert_eq!(causes.iter().map(|cause| cause.count).sum::<i64>(), sent.len() as i64);
    let of = |header: &str| DeadFilter { header: Some(header.to_owned()), ..DeadFilter::default() };
    let found = async |header: &str| admin.letter_count("billing", &of(header)).await.expect("a count");
    assert_eq!((found("h").await, found("x").await), (sent.len() as u64, 0));
    let dead = admin.trace("m0").await.expect("a trace");
    assert_eq!((dead[0].outcome.as_deref(), &dead[0].letters[..]), (Some("x"), &[sent[0].0][..]));
    let status = &admin.consumers(Some("billing")).await.expect("its state")[0];
    assert_eq!((status.dead.count, status.deferred.count, status.paused), (sent.len() as u64, 0, false));
    let target = ControlTarget::Consumer("billing".to_owned());
    admin.control(&target, &Control::Pause, &crate::fixture::actor()).await.expect("paused");
    let status = &admin.consumers(Some("billing")).await.expect("its state")[0];
    let set = status.set_by.as_ref().expect("somebody paused it");
    assert!(status.paused && set.actor == crate::fixture::actor().name && set.at <= status.now, "{set:?}");
    let told = posthaste::admin::diagnose_consumer(status, Some(0));
    assert_eq!(told.iter().map(|problem| problem.kind).collect::<Vec<_>>(), ["paused", "dead_letters"]);
    admin.control(&target, &Control::Resume, &crate::fixture::actor()).await.expect("resumed");
    assert_eq!(admin.consumers(Some("billing")).await.expect("its state")[0].set_by, None);
    let (act, all) = (DeadAct::Replay, DeadFilter { all: true, ..DeadFilter::default() });
    let mut replayed = 0;
    while let done @ 1.. =
        admin.letter_act("billing", &all, act, &crate::fixture::actor(), 2).await.expect("replayed")
    {
        replayed += done;
    }
    assert_eq!(replayed, sent.len() as u64, "chunk by chunk");
    let audited = "select sum(detail ->> 'count') from posthaste_audit where action = 'replay'";
    assert_eq!(ground.count(audited), sent.len() as i64);
    while inbox.apply_deferred(&heads()).await.expect("a look").done() > 0 {}
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!(seen.len(), sent.len());
    for ((_, work), seen) in sent.iter().zip(&seen) {
        assert_eq!((&work.delivery.message, work.delivery.position), (&seen.message, seen.position));
    }
}

/// What an operator leaves out of a letter's headers is gone when it is handled again, and audited.
#[tokio::test]
async fn g6_headers_that_are_dropped_at_a_replay_are_audited() {
    let ground = Ground::make().await;
    let handler = Act(|_: &Transaction<'_>, _: &Message<'_>| Ok(()));
    let inbox = inbox(ground.writer(), InboxOptions::new("billing"), handler);
    let headers = ["type", "X-Debug", "note"].map(|name| (name.to_owned(), Bytes::from_static(b"v"))).into();
    let message = Received { id: Some("m1".to_owned()), headers, payload: None, key: None };
    let burial = Burial {
        letter: Uuid::now_v7(),
        disposition: Disposition::Decode,
        failure: failure("no"),
        holds_key: false,
    };
    let work = work_with(1, "k", "m1", message);
    inbox.defer(None, &[work], &DeferOrBury::Bury(burial)).await.expect("buried");
    let admin = SqliteAdmin::new(ground.fixture.config());
    let all = DeadFilter { all: true, ..DeadFilter::default() };
    let drop = KeptHeaders::but(&["x-*".to_owned()], &[]).expect("a list");
    let replayed = admin.replay_letters("billing", &all, &drop, &crate::fixture::actor(), 9).await;
    assert_eq!(replayed.expect("replayed"), 1);
    let stored = ground.texts("select headers from posthaste_inbox_deferred");
    assert_eq!(stored, [r#"[["type","v"],["note","v"]]"#]);
    let audited = ground.texts("select detail -> 'headers' from posthaste_audit where action = 'replay'");
    assert_eq!(audited, [r#"{"drop":["x-*"]}"#]);
}

/// F69: what was done ahead of the saved position is never forgotten.
#[tokio::test]
async fn f69_marks_are_purged_below_the_position_alone() {
    let ground = Ground::make().await;
    let inbox = ground.inbox(|_, _| Ok(()));
    let partition = Partition::new("orders", 0);
    inbox.take(std::slice::from_ref(&partition), "me").await.expect("taken");
    let batch: Vec<Work> = (0..6).map(|n| work("a", n)).collect();
    inbox.apply(None, &batch, PATIENCE).await.expect("applied");
    let aged = "update posthaste_inbox set processed_at = processed_at - 30 * 86400000000";
    ground.fixture.connect().execute(aged, []).expect("aged");
    let retention = ConsumerRetention::default();
    assert_eq!(inbox.sweep(retention, 10).await.expect("swept").marks, 0, "nothing is saved yet");
    let saved = SavedPosition {
        partition,
        position: Some(4),
        position_time: None,
        log_id: None,
        in_hand: None,
        seeks: 0,
        release: false,
    };
    inbox.save("me", Witness::default(), &[saved], None).await.expect("saved");
    assert_eq!(inbox.sweep(retention, 10).await.expect("swept").marks, 4);
    assert_eq!(ground.marks(), ["a4=d", "a5=d"]);
}

/// A statement that does not end is interrupted; a handler that sleeps is told when it is back.
#[tokio::test]
async fn a_handler_that_takes_too_long_has_failed() {
    let ground = Ground::make().await;
    let inbox = ground.inbox(|tx, message| {
        if message.id() == "b2" {
            let endless =
                "with recursive n (n) as (select 1 union all select n + 1 from n) select count(*) from n";
            return Ok(tx.query_row(endless, [], |_| Ok(()))?);
        }
        let began = Instant::now();
        while message.id() == "c3" && began.elapsed() < Duration::from_millis(60) {
            std::thread::yield_now();
        }
        Ok(())
    });
    let limit = Duration::from_millis(50);
    for (late, place) in [(work("b", 2), 1), (work("c", 3), 1)] {
        let error = error(inbox.apply(None, &[work("a", 1), late], limit).await);
        assert_eq!((error.at, error.failure.kind), (Some(place), FailureKind::Timeout));
    }
    assert_eq!(inbox.apply(None, &[work("a", 1)], PATIENCE).await.expect("applied").outcomes.len(), 1);
    assert_eq!(ground.effects(), ["a1"]);
}

/// A handler that ends the transaction stops the consumer, and no mark is left without its effects.
#[tokio::test]
async fn a_handler_that_commits_leaves_no_mark_of_what_never_ran() {
    for end in ["commit", "commit; begin immediate", "commit; begin"] {
        let ground = Ground::make().await;
        let inbox = ground.inbox(move |tx, message| {
            if message.id() == "b2" {
                tx.execute_batch(end)?;
            }
            Ok(())
        });
        let batch = [work("a", 1), work("b", 2), work("c", 3)];
        let error = error(inbox.apply(None, &batch, PATIENCE).await);
        assert_eq!(error.failure.kind, FailureKind::Committed, "{end}: {:?}", error.failure);
        assert_eq!((error.at, ground.effects()), (Some(1), vec!["a1".to_owned(), "b2".to_owned()]), "{end}");
        assert_eq!(ground.marks(), ["a1=d", "b2=d"], "{end}");
        // The same among the deferred: it stops, and the row is not run twice.
        let how = DeferOrBury::Defer { delay: Duration::ZERO, failure: failure("later") };
        let ground = Ground::make().await;
        let inbox = ground.inbox(move |tx, _| Ok(tx.execute_batch(end)?));
        inbox.defer(None, &[work("a", 1)], &how).await.expect("deferred");
        assert!(matches!(inbox.apply_deferred(&heads()).await, Err(InboxError::Broken(_))), "{end}");
        assert_eq!((ground.marks(), ground.effects()), (vec!["a1=d".to_owned()], vec!["a1".to_owned()]));
    }
    let ground = Ground::make().await;
    let inbox = ground.inbox(|tx, _| Ok(tx.execute_batch("rollback")?));
    let error = error(inbox.apply(None, &[work("a", 1)], PATIENCE).await);
    assert_eq!((error.at, error.failure.kind), (Some(0), FailureKind::Error));
    assert_eq!((ground.effects().len(), ground.marks().len()), (0, 0));
}

/// Whose fault it is: nobody's, the database's, an operator's.
#[tokio::test]
async fn errors_of_the_database_are_not_the_messages() {
    let ground = Ground::make().await;
    let inbox = ground.inbox(|_, message| {
        let code = if message.id() == "a1" { rusqlite::ffi::SQLITE_BUSY } else { rusqlite::ffi::SQLITE_FULL };
        let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        Err(posthaste_sqlite::AppendError::from(error).into())
    });
    let busy = error(inbox.apply(None, &[work("a", 1)], PATIENCE).await);
    assert_eq!(busy.failure.kind, FailureKind::Conflict);
    let full = error(inbox.apply(None, &[work("b", 2)], PATIENCE).await);
    assert_eq!(full.failure.kind, FailureKind::ConnectionLost, "another file may be full");
    ground.fixture.connect().execute_batch("drop table posthaste_inbox_deferred").expect("dropped");
    let broken = error(inbox.apply(None, &[work("c", 3)], PATIENCE).await);
    assert_eq!(broken.failure.kind, FailureKind::Broken, "{:?}", broken.failure);
    let deferring = inbox.defer(None, &[work("c", 3)], &DeferOrBury::Behind).await;
    assert!(matches!(deferring, Err(InboxError::Broken(_))), "{deferring:?}");
}

/// Runs of one handler go to it as a batch; what it says of them is told by their places in the whole.
#[tokio::test]
async fn a_batch_goes_to_each_handler_in_runs() {
    struct All(Arc<AtomicUsize>);
    impl Handler for All {
        fn handle(&self, _: &Transaction<'_>, _: &Message<'_>) -> Result<(), HandlerError> {
            Err(HandlerError::reject("never", "it is not asked"))
        }
        fn handle_all(&self, _: &Transaction<'_>, batch: &[Message<'_>]) -> Result<(), Failed> {
            self.0.fetch_max(batch.len(), Ordering::SeqCst);
            match batch.iter().position(|message| message.id() == "b4") {
                Some(at) => Err(Failed::at(at, HandlerError::reject("no", "never"))),
                None => Ok(()),
            }
        }
    }
    let ground = Ground::make().await;
    let longest = Arc::new(AtomicUsize::new(0));
    let only = |types: &str| Filter { topics: vec![types.to_owned()], ..Filter::default() };
    let handlers: Vec<(Filter, Arc<dyn Handler>)> = vec![
        (only("other"), Arc::new(Act(|_: &Transaction<'_>, _: &Message<'_>| Ok(())))),
        (only("orders"), Arc::new(All(Arc::clone(&longest)))),
    ];
    let inbox = SqliteInbox::with(ground.writer(), InboxOptions::new("billing"), handlers);
    let mut other = work("z", 1);
    let delivery = Arc::make_mut(&mut other.delivery);
    delivery.ticket.partition = Partition::new("other", 0);
    let batch = [work("a", 1), work("a", 2), other, work("a", 3), work("b", 4), work("a", 5)];
    let error = error(inbox.apply(None, &batch, PATIENCE).await);
    assert_eq!((error.at, longest.load(Ordering::SeqCst)), (Some(4), 3));
    inbox.apply(None, &batch[..4], PATIENCE).await.expect("applied");
    assert_eq!(ground.marks().len(), 4);
}

/// F21: after deaths the attempt is spent before the handler runs.
#[tokio::test]
async fn f21_a_message_that_kills_its_process_dies_in_the_end() {
    let ground = Ground::make().await;
    let seen = ground.fixture.path();
    let inbox = ground.inbox(move |_, message| {
        let attempts: u32 = connect(&seen)
            .query_row("select attempts from posthaste_inbox_deferred", [], |row| row.get(0))
            .expect("as others see it");
        assert_eq!((attempts, message.attempt()), (1, 1));
        Ok(())
    });
    let careful = DueHeads { careful: true, ..heads() };
    let how = DeferOrBury::Defer { delay: Duration::ZERO, failure: failure("later") };
    inbox.defer(None, &[work("a", 1)], &how).await.expect("deferred");
    assert_eq!(inbox.apply_deferred(&careful).await.expect("a look").done(), 1);
    inbox.defer(None, &[work("b", 2)], &how).await.expect("deferred");
    let died = "update posthaste_inbox_deferred set attempts = 3";
    ground.fixture.connect().execute(died, []).expect("as deaths leave it");
    assert_eq!(inbox.apply_deferred(&careful).await.expect("a look").buried(), 1);
    assert_eq!(ground.texts("select disposition from posthaste_inbox_dead_letters"), ["crashed"]);
}

/// What waits of a consumer, by pages and by cause; what is behind another has no time of its own.
#[tokio::test]
async fn what_waits_of_a_consumer_is_listed_and_counted() {
    let ground = Ground::make().await;
    ground
        .fixture
        .connect()
        .execute_batch(
            "insert into posthaste_inbox_deferred (consumer, message_id, topic, partition, key, headers, reason, holds, attempts,
               due_at, error_code, last_error, deferred_at)
             values ('billing', 'a', 'orders', 0, x'6b', '[]', 'retry', 1, 2, 5, 'ledger.no', 'first', 1),
                    ('billing', 'b', 'orders', 0, x'ff', '[]', 'held', 1, 0, 9223372036854775807, null, null, 2),
                    ('other', 'c', 'orders', 0, null, '[]', 'retry', 1, 1, 5, 'ledger.no', 'not mine', 3),
                    ('billing', 'd', 'orders', 1, null, '[]', 'retry', 1, 1, 4, 'ledger.no', 'last', 4)",
        )
        .expect("rows");
    let (admin, all) = (ground.fixture.admin().await, DeferredFilter::default());
    let page = admin.deferred_messages("billing", &all, None, 2).await.expect("a page");
    let seen: Vec<_> =
        page.iter().map(|one| (&*one.id, one.key.as_deref(), one.due_at.map(|at| at.0))).collect();
    assert_eq!(seen, [("a", Some("k"), Some(5)), ("b", Some("\u{fffd}"), None)]);
    let rest = admin.deferred_messages("billing", &all, Some(page[1].seq), 2).await.expect("a page");
    assert_eq!((rest.len(), &*rest[0].id), (1, "d"));
    let causes = admin.message_causes("billing", &all, 9).await.expect("causes");
    let seen: Vec<_> = causes
        .iter()
        .map(|one| {
            (&*one.reason, one.count, one.error.as_deref(), one.oldest_at.0, one.due_at.map(|at| at.0))
        })
        .collect();
    assert_eq!(seen, [("retry", 2, Some("last"), 1, Some(4)), ("held", 1, None, 2, None)]);
    let held = DeferredFilter { reason: Some("held".to_owned()), ..DeferredFilter::default() };
    assert_eq!(admin.deferred_messages("billing", &held, None, 9).await.expect("a page").len(), 1);
}
