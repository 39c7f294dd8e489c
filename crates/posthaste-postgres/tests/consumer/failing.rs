//! Handlers that fail in every way that there is.

use crate::fixture::{InboxFixture, effect};
use async_trait::async_trait;
use bytes::Bytes;
use posthaste::admin::History;
use posthaste::consumer::identity::order_id;
use posthaste::consumer::store::{DeferOrBury, DueHeads, InboxStore, MessageOutcome, SetAside, Work};
use posthaste::consumer::{ConsumerRetry, Disposition, Failure, FailureKind, HandlerError, Message, Order};
use posthaste::source::{Delivery, Partition, Received, Ticket};
use posthaste_postgres::consumer::{Handler, PostgresInbox};
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use posthaste_testkit::conformance::eventually;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Transaction;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A message with a payload.
pub(crate) fn work_with(position: i64, payload: Option<&[u8]>) -> Work {
    let message = Received {
        id: Some(format!("m{position}")),
        key: Some(Bytes::from(format!("k{position}"))),
        headers: Vec::new(),
        payload: payload.map(Bytes::copy_from_slice),
    };
    let delivery = Delivery {
        ticket: Ticket { partition: Partition::new("orders", 0), epoch: 1, number: position },
        position: Some(position),
        redelivery: None,
        published_at: None,
        address: None,
        message,
    };
    let order_id = order_id(Order::Key, &delivery);
    let id = format!("m{position}").into();
    Work { delivery: Arc::new(delivery), id, order_id, attempts: 0, history: History::default() }
}

/// A message that is just there.
pub(crate) fn work(position: i64) -> Work {
    work_with(position, Some(b"{}"))
}

/// A message whose payload a handler runs as SQL.
fn sql(position: i64, text: &str) -> Work {
    work_with(position, Some(text.as_bytes()))
}

/// Makes an effect, and then does what the payload says.
struct Obey;

#[async_trait]
impl Handler for Obey {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        effect(tx, message).await?;
        let said = message.message.payload.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        match &*said {
            "{}" => {}
            "panic" => panic!("as it was told"),
            "hang" => std::future::pending().await,
            "block" => std::thread::sleep(Duration::from_millis(1_500)),
            "leak" => std::mem::forget(tx.transaction().await?),
            "swallow" => drop(tx.batch_execute("select 1/0").await),
            text => tx.batch_execute(text).await?,
        }
        Ok(())
    }
}

async fn failed(inbox: &PostgresInbox, batch: &[Work]) -> (Option<usize>, FailureKind, String) {
    let error = inbox.apply(None, batch, Duration::from_secs(5)).await.expect_err("it fails");
    (error.at, error.failure.kind, error.failure.code.to_string())
}

fn raise(code: &str) -> String {
    format!("do $$ begin raise exception 'no' using errcode = '{code}'; end $$")
}

/// Patient looks at what is deferred, with these delays in memory.
pub(crate) fn heads(delays_ms: Vec<u64>) -> DueHeads {
    DueHeads {
        messages_max: 64,
        handler_time_max: PATIENCE,
        handler_timeout: PATIENCE,
        retry: ConsumerRetry { delays_ms, then: None },
        dead_hold: false,
        unavailable_pause: Duration::ZERO,
        careful: false,
        chance: 0.0,
    }
}

/// Each kind by itself, in a batch of three: the one in the middle is named, nothing happened, and the inbox
/// goes on.
#[tokio::test(flavor = "multi_thread")]
async fn f68_each_failure_is_classified_and_leaves_nothing() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Obey).await;
    let cases = [
        ("select 1/0".to_owned(), FailureKind::Error, "sqlstate.22012"),
        ("select * from nowhere".to_owned(), FailureKind::Error, "sqlstate.42P01"),
        ("panic".to_owned(), FailureKind::Panic, "handler.panic"),
        ("swallow".to_owned(), FailureKind::Error, "handler.swallowed"),
        (raise("40001"), FailureKind::Conflict, "handler.conflict"),
        (raise("40P01"), FailureKind::Conflict, "handler.conflict"),
        (raise("55P03"), FailureKind::Conflict, "handler.conflict"),
        (raise("08006"), FailureKind::ConnectionLost, "database.outage"),
        (raise("53100"), FailureKind::ConnectionLost, "database.outage"),
        (raise("53300"), FailureKind::ConnectionLost, "database.outage"),
        (raise("57P03"), FailureKind::ConnectionLost, "database.outage"),
        (raise("58030"), FailureKind::ConnectionLost, "database.outage"),
        (raise("25006"), FailureKind::ConnectionLost, "database.outage"),
        (raise("53200"), FailureKind::Error, "sqlstate.53200"),
        (raise("57014"), FailureKind::Timeout, "handler.timeout"),
        (raise("PH001"), FailureKind::Poison(Disposition::Rejected), "handler.rejected"),
        (
            "select pg_terminate_backend(pg_backend_pid())".to_owned(),
            FailureKind::ConnectionLost,
            "handler.connection_lost",
        ),
    ];
    for (said, kind, code) in cases {
        let found = failed(&inbox, &[work(1), sql(2, &said), work(3)]).await;
        assert_eq!(found, (Some(1), kind, code.to_owned()), "{said}");
        assert_eq!(
            (fixture.effects("billing").await.len(), fixture.marks("billing").await.len()),
            (0, 0),
            "{said}"
        );
    }
    let applied = inbox.apply(None, &[work(1), work(2), work(3)], PATIENCE).await.expect("it goes on");
    assert_eq!(applied.outcomes, [MessageOutcome::Done; 3]);
}

/// A handler that never ends is given up after its time, with its statement or without.
#[tokio::test(flavor = "multi_thread")]
async fn f68_a_handler_that_hangs_has_timed_out() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Obey).await;
    for said in ["hang", "select pg_sleep(600)"] {
        let batch = [work(1), sql(2, said), work(3)];
        let error = inbox.apply(None, &batch, Duration::from_secs(1)).await.expect_err("it hangs");
        assert_eq!((error.at, error.failure.kind), (Some(1), FailureKind::Timeout), "{said}");
    }
    // The statement is ended at once, and with it what the others of the batch had.
    let done = eventually("the locks of the statement to go", Duration::from_secs(90), || async {
        match inbox.apply(None, &[work(1), work(3)], PATIENCE).await {
            Ok(applied) => Some(applied.outcomes),
            Err(error) => (error.failure.kind != FailureKind::Conflict).then(|| panic!("{error:?}")),
        }
    });
    assert_eq!(done.await, [MessageOutcome::Done; 2]);
}

/// A handler whose time is over while it waits for somebody's lock is not to blame, fresh or deferred, alone
/// or in company, also behind a pooler.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_waits_for_a_lock_is_never_charged() {
    for pooled in [false, true] {
        let fixture = if pooled { InboxFixture::pooled().await } else { InboxFixture::make().await };
        let Some(fixture) = fixture else { return };
        let (inbox, limit) = (fixture.with(Obey).await, Duration::from_secs(1));
        inbox.defer(None, &[work(1)], &at_once()).await.expect("deferred");
        let migration = fixture.client().await;
        let lock = "begin; lock table effects in access exclusive mode";
        migration.batch_execute(lock).await.expect("the lock");
        for batch in [vec![work(2)], vec![work(3), work(4)]] {
            let error = inbox.apply(None, &batch, limit).await.expect_err("it waits");
            assert_eq!((error.at, error.failure.kind), (Some(0), FailureKind::Conflict), "pooled: {pooled}");
            assert!(error.failure.message.contains("waits for a lock"), "{}", error.failure.message);
        }
        let due = DueHeads { handler_timeout: limit, ..heads(vec![]) };
        let looked = inbox.apply_deferred(&due).await.expect("a look");
        let kinds: Vec<&FailureKind> = looked.failed.iter().map(|failure| &failure.kind).collect();
        assert_eq!((kinds, looked.buried()), (vec![&FailureKind::Conflict], 0), "pooled: {pooled}");
        let deferred = fixture.deferred("billing").await;
        assert!(deferred.len() == 1 && deferred[0].attempts == 0, "no attempt is spent: {deferred:?}");
        migration.batch_execute("commit").await.expect("the end of it");
        eventually("what waited is done", PATIENCE, || async {
            fixture.make_due("billing").await;
            let fresh = [work(2), work(3), work(4)];
            let applied = inbox.apply(None, &fresh, PATIENCE).await;
            let looked = inbox.apply_deferred(&heads(vec![])).await;
            (applied.is_ok() && looked.is_ok() && fixture.effects("billing").await.len() == 4).then_some(())
        })
        .await;
        assert!(fixture.letters("billing").await.is_empty(), "nothing died of it");
    }
}

/// The lock goes before the handler's time is over, and too late for the rest of its work: that time was not
/// its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_goes_late_leaves_nobody_to_blame() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let (inbox, limit) = (fixture.with(Obey).await, Duration::from_secs(4));
    let migration = fixture.client().await;
    migration.batch_execute("begin; lock table effects in access exclusive mode").await.expect("the lock");
    let slow = [sql(1, "select pg_sleep(60)")];
    let (applied, ()) = tokio::join!(inbox.apply(None, &slow, limit), async {
        let client = fixture.client().await;
        eventually("the handler waits", PATIENCE, || async {
            let sql = "select from pg_locks l join pg_database d on d.oid = l.database \
                       where d.datname = current_database() and not l.granted";
            (!client.query(sql, &[]).await.expect("the locks").is_empty()).then_some(())
        })
        .await;
        tokio::time::sleep(limit * 7 / 8).await; // pace: most of its time
        migration.batch_execute("commit").await.expect("the end of it");
    });
    let failure = applied.expect_err("its time is over").failure;
    assert_eq!(failure.kind, FailureKind::Conflict, "{}", failure.message);
}

/// A handler that blocks its thread cannot be interrupted. It is done or has timed out, and others go on
/// meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f68_a_handler_that_blocks_its_thread_holds_up_itself_alone() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Obey).await;
    let (limit, blocking) = (Duration::from_millis(500), [sql(1, "block")]);
    let (blocked, others) = tokio::join!(inbox.apply(None, &blocking, limit), async {
        let began = tokio::time::Instant::now();
        let applied = inbox.apply(None, &[work(2), work(3)], PATIENCE).await.expect("others go on");
        (applied.outcomes, began.elapsed())
    });
    assert_eq!(others.0, [MessageOutcome::Done; 2]);
    match blocked {
        Ok(applied) => assert_eq!(applied.outcomes, [MessageOutcome::Done]),
        Err(error) => assert_eq!(error.failure.kind, FailureKind::Timeout),
    }
    let marks: Vec<String> = fixture.marks("billing").await.into_keys().collect();
    let mut effects = fixture.effects("billing").await;
    effects.sort();
    assert_eq!(effects, marks, "a mark for each effect");
}

/// A savepoint that nobody ends is part of the transaction, and ends with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_a_handler_leaks_ends_with_ours() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Obey).await;
    for position in [0, 10] {
        let batch = [work(position), sql(position + 1, "leak"), work(position + 2)];
        let applied = inbox.apply(None, &batch, PATIENCE).await.expect("applied");
        assert_eq!(applied.outcomes, [MessageOutcome::Done; 3]);
    }
    assert_eq!((fixture.effects("billing").await.len(), fixture.marks("billing").await.len()), (6, 6));
}

/// A handler that prepares the transaction leaves a mark that nobody sees and everybody waits for: the
/// consumer stops, the message waits without an attempt, `doctor` names the transaction, and whoever ends it
/// lets the message go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_prepares_its_transaction_is_found_and_named() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Obey).await;
    let gid = format!("by_a_handler_{}", uuid::Uuid::new_v4().simple());
    let prepares = sql(1, &format!("prepare transaction '{gid}'"));
    let error = inbox.apply(None, &[work(2), prepares], PATIENCE).await.expect_err("it is found");
    assert_eq!((error.at, error.failure.kind), (Some(1), FailureKind::Committed));
    assert!(fixture.effects("billing").await.is_empty() && fixture.marks("billing").await.is_empty());
    assert_eq!(failed(&inbox, &[work(1)]).await.1, FailureKind::Conflict, "no attempt");
    let sooner = posthaste_postgres::doctor::Bounds { prepared_inbox: Duration::ZERO, ..Default::default() };
    let findings =
        posthaste_postgres::doctor::examine_consumer(&fixture.config(), &sooner).await.expect("examined");
    assert!(
        findings.iter().any(|found| found.check == "prepared_transactions" && found.text.contains(&gid)),
        "{findings:?}"
    );
    fixture.run(&format!("rollback prepared '{gid}'")).await;
    let applied = inbox.apply(None, &[work(1), work(2)], PATIENCE).await.expect("it goes on");
    assert_eq!(applied.outcomes, [MessageOutcome::Done; 2]);
}

/// A constraint that is checked at the commit names nobody among many, and the one that is alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_at_the_commit_names_nobody_but_one_that_is_alone() {
    let Some(fixture) = InboxFixture::make().await else { return };
    fixture.run("create table once (id int unique deferrable initially deferred)").await;
    let inbox = fixture.with(Obey).await;
    let twice = sql(2, "insert into once values (1), (1)");
    assert_eq!(
        failed(&inbox, &[work(1), twice.clone(), work(3)]).await,
        (None, FailureKind::Error, "sqlstate.23505".to_owned())
    );
    assert_eq!(failed(&inbox, &[twice]).await.0, Some(0));
    assert!(fixture.effects("billing").await.is_empty() && fixture.marks("billing").await.is_empty());
}

/// A handler that commits by itself, in a batch of three: the consumer hears of it, and what did not run has
/// no mark.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_commits_is_found_and_what_did_not_run_has_no_mark() {
    for (says, by) in [
        ([Some("commit"), None, None], 0),
        ([None, Some("commit"), None], 1),
        ([None, None, Some("commit")], 2),
    ] {
        let Some(fixture) = InboxFixture::make().await else { return };
        let inbox = fixture.with(Obey).await;
        let batch: Vec<Work> =
            (0..3).map(|at| says[at].map_or_else(|| work(at as i64), |text| sql(at as i64, text))).collect();
        let error = inbox.apply(None, &batch, PATIENCE).await.expect_err("it stops");
        assert_eq!((error.at, error.failure.kind), (Some(by), FailureKind::Committed));
        let effects = fixture.effects("billing").await;
        let marks: Vec<String> = fixture.marks("billing").await.into_keys().collect();
        assert_eq!(effects, marks, "a mark for each effect, and no other");
        assert!(effects.len() > by);
        let applied =
            inbox.apply(None, &[work(7)], PATIENCE).await.expect("the connection was not used again");
        assert_eq!(applied.outcomes, [MessageOutcome::Done]);
    }
}

/// A role that a handler took, for the transaction or for the session, is neither the next handler's nor
/// ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_left_behind_is_nobody_elses() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let role = format!("nobody_{}", uuid::Uuid::new_v4().simple());
    fixture.run(&format!("create role {role}")).await;
    let inbox = fixture.with(Obey).await;
    for (position, set) in ["set local role", "set role"].into_iter().enumerate() {
        let position = position as i64 * 10;
        let batch = [sql(position, &format!("{set} {role}")), work(position + 1)];
        let applied = inbox.apply(None, &batch, PATIENCE).await.expect("the second handler has its rights");
        assert_eq!(applied.outcomes, [MessageOutcome::Done; 2], "{set}");
        let applied = inbox.apply(None, &[work(position + 2)], PATIENCE).await.expect("and so have we");
        assert_eq!(applied.outcomes, [MessageOutcome::Done], "{set}");
    }
    drop(inbox);
    fixture.run(&format!("drop role {role}")).await;
}

/// A constraint trigger that asks another server, which is down: nobody among many is named, and it is no
/// outage of ours.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_that_only_the_commit_hears_of_is_a_messages_too() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let trigger = "create table asked (id int);
        create function ask() returns trigger language plpgsql as
          $$ begin raise exception 'no' using errcode = '08001'; end $$;
        create constraint trigger ask after insert on asked deferrable initially deferred
          for each row execute function ask()";
    fixture.run(trigger).await;
    let inbox = fixture.with(Obey).await;
    let asks = sql(2, "insert into asked values (1)");
    let outage = |at| (at, FailureKind::ConnectionLost, "database.outage".to_owned());
    assert_eq!(failed(&inbox, &[work(1), asks.clone(), work(3)]).await, outage(None));
    assert_eq!(failed(&inbox, &[asks]).await, outage(Some(0)));
    let kill = sql(
        4,
        "create function kill() returns trigger language plpgsql as
          $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
        create table killed (id int);
        create constraint trigger kill after insert on killed deferrable initially deferred
          for each row execute function kill();
        insert into killed values (1)",
    );
    assert_eq!(failed(&inbox, &[kill]).await.1, FailureKind::ConnectionLost);
}

/// What is deferred runs elsewhere, and is no safer: a role is left behind, a backend is killed, another
/// server is away. Every third loss is an attempt, however many of them there are.
#[tokio::test(flavor = "multi_thread")]
async fn f21_a_deferred_message_that_kills_its_backend_dies_in_the_end() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let role = format!("nobody_{}", uuid::Uuid::new_v4().simple());
    fixture.run(&format!("create role {role}")).await;
    let inbox = fixture.with(Obey).await;
    let killer = sql(2, "select pg_terminate_backend(pg_backend_pid())");
    for work in [sql(1, &format!("set local role {role}")), killer, work(3), sql(4, &raise("08001"))] {
        assert_eq!(
            inbox.defer(None, &[work], &at_once()).await.expect("deferred").outcomes,
            [SetAside::Kept]
        );
    }
    let (mut done, mut buried, mut losses) = (0, 0, 0);
    while buried < 2 {
        let outcome = inbox.apply_deferred(&heads(vec![0; 4])).await.expect("a look");
        (done, buried) = (done + outcome.done(), buried + outcome.buried());
        losses += outcome.failed.len();
        assert!(losses < 40, "it goes on for ever");
    }
    assert_eq!((done, losses), (2, 2 * 14), "the third loss of the fifth attempt is the last one");
    let letters = fixture.letters("billing").await;
    assert!(
        letters.iter().all(|letter| letter.disposition == "crashed" && letter.attempts == 5),
        "{letters:?}"
    );
    drop(inbox);
    fixture.run(&format!("drop role {role}")).await;
}

pub(crate) fn at_once() -> DeferOrBury {
    let failure = Failure::new(FailureKind::Error, "test", "deferred");
    DeferOrBury::Defer { delay: Duration::ZERO, failure }
}

/// Whoever looks may have been told to end: it hears of that between two looks.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_messages_that_hang_does_not_wait_for_all_of_them() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Obey).await;
    for position in 0..8 {
        inbox.defer(None, &[sql(position, "hang")], &at_once()).await.expect("deferred");
    }
    let heads = DueHeads { handler_timeout: Duration::from_secs(1), ..heads(vec![3_600_000]) };
    let look = inbox.apply_deferred(&heads).await.expect("a look");
    assert!((1..8).contains(&look.failed.len()), "{look:?}");
    assert_eq!(look.next_due, Some(Duration::ZERO), "the next look takes the rest");
}

/// F21: a statement that never ends is an attempt each time, also of a message that is deferred, and its end
/// leaves no lock behind that would keep the attempt from being written down.
#[tokio::test(flavor = "multi_thread")]
async fn f21_a_deferred_message_whose_statement_hangs_dies_in_the_end() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Obey).await;
    inbox.defer(None, &[sql(1, "select pg_sleep(600)")], &at_once()).await.expect("deferred");
    let heads = DueHeads { handler_timeout: Duration::from_secs(1), ..heads(vec![0]) };
    let first = inbox.apply_deferred(&heads).await.expect("a look");
    let kinds: Vec<&FailureKind> = first.failed.iter().map(|failure| &failure.kind).collect();
    assert_eq!((kinds, first.buried()), (vec![&FailureKind::Timeout], 1), "two attempts: {first:?}");
    let letters = fixture.letters("billing").await;
    assert_eq!((letters.len(), &*letters[0].disposition, letters[0].attempts), (1, "timeout", 2));
}

/// What a handler leaves behind in its session costs one transaction, not every one that comes after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_a_handler_spoilt_is_not_used_again() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let inbox = fixture.with(Obey).await;
    for (n, spoil) in ["set default_transaction_read_only = on", "deallocate all"].into_iter().enumerate() {
        let position = n as i64 * 10;
        inbox.apply(None, &[work(position), sql(position + 1, spoil)], PATIENCE).await.expect("applied");
        let (_, kind, code) = failed(&inbox, &[work(position + 2)]).await;
        assert_eq!((kind, &*code), (FailureKind::Outage, "inbox.unavailable"), "{spoil}");
        let applied = inbox.apply(None, &[work(position + 2)], PATIENCE).await.expect("another session");
        assert_eq!(applied.outcomes, [MessageOutcome::Done], "{spoil}");
    }
}
