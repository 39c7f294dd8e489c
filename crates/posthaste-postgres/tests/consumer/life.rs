//! Positions and lives of the server.

use crate::failing::{PATIENCE, work};
use crate::fixture::{InboxFixture, effect};
use async_trait::async_trait;
use posthaste::consumer::store::{InboxStore, MessageOutcome, SavedPosition};
use posthaste::consumer::{HandlerError, Message};
use posthaste::source::Partition;
use posthaste_postgres::consumer::Handler;
use posthaste_testkit::conformance::consumer::ConsumerFixture;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, Version};
use std::time::Duration;
use tokio_postgres::Transaction;

pub(crate) struct Effects;

#[async_trait]
impl Handler for Effects {
    async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
        effect(tx, message).await
    }
}

fn saved(position: i64) -> SavedPosition {
    SavedPosition {
        partition: Partition::new("orders", 0),
        position: Some(position),
        position_time: None,
        log_id: Some("log".to_owned()),
        in_hand: None,
        seeks: 0,
        release: false,
    }
}

/// The witness: what was made in another life of the server is not written.
#[tokio::test]
async fn f6_another_life_of_the_server_is_seen_and_its_memory_does_not_count() {
    let mut server = require_service!(Postgres::start(Version::tested(), &PostgresOptions::default()).await);
    let fixture = InboxFixture::on(&server).await;
    let inbox = fixture.with(Effects).await;
    let partition = Partition::new("orders", 0);
    let before = inbox.take(std::slice::from_ref(&partition), "one").await.expect("taken").witness;
    assert!(before.0.is_some());
    assert_eq!(inbox.apply(None, &[work(1)], PATIENCE).await.expect("applied").witness, before);
    server.stop_fast().await.expect("the server stops");
    assert!(inbox.save("one", before, &[saved(2)], None).await.is_err(), "there is no server");
    server.start_again().await.expect("the server starts");
    let saving = inbox.save("one", before, &[saved(2)], None).await.expect("an answer");
    assert_ne!(saving.witness, before);
    let found = fixture.partition("billing", &partition).await.expect("its row");
    assert_eq!(found.position, None, "made under another witness");
    let applied = inbox.apply(None, &[work(1), work(2)], PATIENCE).await.expect("applied");
    assert_eq!(applied.outcomes, [MessageOutcome::Duplicate, MessageOutcome::Done]);
    assert_eq!(applied.witness, saving.witness);
}

/// An owner and a zombie save the same partitions at once, in another order each, and both have to wait in
/// the middle. Nobody deadlocks, and the higher position stays.
#[tokio::test(flavor = "multi_thread")]
async fn g4_owner_and_zombie_do_not_deadlock() {
    let Some(fixture) = InboxFixture::make().await else { return };
    let (one, other) = (fixture.with(Effects).await, fixture.with(Effects).await);
    let partitions: Vec<Partition> = (0..8).map(|number| Partition::new("orders", number)).collect();
    let witness = one.take(&partitions, "one").await.expect("taken").witness;
    other.take(&partitions, "other").await.expect("taken");
    let all = |position| -> Vec<SavedPosition> {
        partitions.iter().map(|p| SavedPosition { partition: p.clone(), ..saved(position) }).collect()
    };
    let (forward, mut backward) = (all(1), all(2));
    backward.reverse();
    let mut blocker = fixture.client().await;
    let waiting = "select count(*) from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock'";
    // On a machine that is busy the wait may end by its own timeout: then it is tried again.
    for _ in 0..20 {
        let tx = blocker.transaction().await.expect("begin");
        let lock = "select from posthaste.inbox_partitions where partition = 4 for update";
        tx.query(lock, &[]).await.expect("locked");
        let release = async {
            eventually("two that wait", Duration::from_secs(90), || async {
                let found: i64 = fixture.rows(waiting, &[]).await[0].get(0);
                (found == 2).then_some(())
            })
            .await;
            tx.rollback().await.expect("released");
        };
        let (left, right) =
            (one.save("one", witness, &forward, None), other.save("other", witness, &backward, None));
        let saves = async { tokio::join!(left, right) };
        let mut saves = std::pin::pin!(saves);
        let ended = tokio::select! {
            ended = &mut saves => Some(ended),
            () = release => None,
        };
        let (left, right) = match ended {
            Some(ended) => ended,
            None => saves.await,
        };
        if left.is_ok() && right.is_ok() {
            for partition in &partitions {
                let found = fixture.partition("billing", partition).await.expect("its row");
                assert_eq!(found.position, Some(2));
            }
            return;
        }
    }
    panic!("one of them always fails");
}

/// Where the database's default is to lose commits, ours are durable; a stronger default is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn f7_a_commit_is_durable_whatever_the_default() {
    struct Shown;
    #[async_trait]
    impl Handler for Shown {
        async fn handle(&self, tx: &mut Transaction<'_>, message: &Message<'_>) -> Result<(), HandlerError> {
            effect(tx, message).await?;
            for name in ["synchronous_commit", "lock_timeout", "enable_seqscan", "statement_timeout"] {
                let sql = "insert into effects (consumer, id) select $1, current_setting($1)";
                tx.execute(sql, &[&name]).await?;
            }
            Ok(())
        }
    }
    let Some(fixture) = InboxFixture::make().await else { return };
    for (set, found) in [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")] {
        let database = fixture.rows("select current_database()::text", &[]).await[0].get::<_, String>(0);
        fixture.run(&format!("alter database {database} set synchronous_commit = {set}")).await;
        fixture
            .run(&format!(
                "alter database {database} set lock_timeout = '7s'; truncate effects, posthaste.inbox"
            ))
            .await;
        let inbox = fixture.with(Shown).await;
        inbox.apply(None, &[work(1)], Duration::from_secs(20)).await.expect("applied");
        for (name, value) in [
            ("synchronous_commit", found),
            ("lock_timeout", "7s"),
            ("enable_seqscan", "on"),
            ("statement_timeout", "25s"),
        ] {
            assert_eq!(fixture.effects(name).await, [value], "{name} with {set}");
        }
    }
}
