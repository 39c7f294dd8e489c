//! Handlers that meet each other, and what waits for them.

use crate::member::{Member, WAIT};
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use std::time::Duration;

const EFFECTS: &str = "select count(*) from trial.effects";

/// Nobody was blamed.
pub(crate) async fn assert_innocent(rig: &Rig, member: &Member, when: &str) {
    let letters = rig.count("select count(*) from posthaste.inbox_dead_letters").await;
    let retries = member.metric("posthaste_consumer_retries_total").await;
    assert_eq!((letters, retries), (0, 0.0), "letters and attempts, {when}");
}

/// Somebody migrates: the handler's table, and then ours, is locked for seconds. No attempt is spent, lag
/// shows it, and it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_locked_for_seconds_costs_nobody_an_attempt() {
    let rig = require_service!(Rig::set("batch_max = 8").await);
    rig.publish(20, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    for (table, conflicts) in [("trial.effects", false), ("posthaste.inbox", true)] {
        rig.run(&format!("begin; lock table {table} in access exclusive mode")).await;
        rig.publish(40, "order").await;
        eventually("the lag shows it", WAIT, || async {
            (member.metric("posthaste_consumer_lag_messages").await >= 40.0).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_secs(if conflicts { 3 } else { 5 })).await; // the migration
        rig.run("commit").await;
        rig.until_settled().await;
        assert_innocent(&rig, &member, table).await;
        let seen = member.metric("posthaste_consumer_conflicts_total").await;
        assert_eq!(seen > 0.0, conflicts, "our own statements wait for a second: {seen}");
    }
    rig.finish(member, "after two migrations").await;
}

/// 40001 and real deadlocks under load: run again, alone, until they come through.
#[tokio::test(flavor = "multi_thread")]
async fn conflicts_under_load_are_nobodys_fault() {
    let rig = require_service!(Rig::set("batch_max = 8").await);
    rig.run("do $$ begin execute format('alter database %I set deadlock_timeout = ''10ms''', current_database()); end $$")
        .await;
    rig.publish(60, "flaky").await;
    rig.publish(24, "cross").await;
    let member = rig.start();
    rig.publish(60, "flaky").await;
    rig.publish(24, "cross").await;
    rig.publish(100, "order").await;
    rig.until_settled().await;
    assert_innocent(&rig, &member, "after conflicts").await;
    let failures = rig.count("select sum(n) from trial.pair").await;
    assert_eq!(failures, 96, "two updates for each that crossed");
    assert!(member.metric("posthaste_consumer_conflicts_total").await > 10.0);
    rig.finish(member, "after conflicts").await;
}

/// A handler that only fails in company: all of it is done, one by one, and no attempt is spent.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_only_in_a_batch_is_done_alone() {
    let rig = require_service!(Rig::set("").await);
    rig.publish(24, "scratch").await;
    rig.publish(24, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    assert_innocent(&rig, &member, "with a temporary table").await;
    assert_eq!(rig.count(EFFECTS).await, 48);
    rig.finish(member, "with a temporary table").await;
}

/// G7: as many messages as are allowed are deferred. The rest waits at the broker, which is said, and it goes
/// on by itself when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn g7_no_more_than_deferred_max_is_deferred_and_it_is_said() {
    let settings = "batch_max = 4\ndeferred_max = 8\nin_hand_max = 32\n\
                    retry = { delays_ms = [], then = { max_attempts = 50, initial_ms = 8000, max_ms = 8000 } }";
    let rig = require_service!(Rig::set(settings).await);
    rig.publish(80, "late").await;
    let member = rig.start();
    let deferred = "select count(*) from posthaste.inbox_deferred";
    rig.until(deferred, 8).await;
    let said = |status: u16, body: &str| status == 503 && body.contains("messages are deferred");
    member.page("/readyz", "that it takes no more", said).await;
    for _ in 0..20 {
        let most = rig.count(deferred).await;
        assert!(most <= 8 + 4 * 4, "{most}: what was under way when it was full may be above");
        tokio::time::sleep(Duration::from_millis(100)).await; // pace
    }
    assert!(member.metric("posthaste_consumer_lag_messages").await > 0.0, "the broker keeps the rest");
    rig.run("update trial.mood set fixed = true").await;
    eventually("everything is handled", WAIT, || async {
        rig.run("update posthaste.inbox_deferred set due_at = now() where isfinite(due_at)").await;
        (rig.count(EFFECTS).await == 80).then_some(())
    })
    .await;
    rig.finish(member, "with few deferred").await;
}
