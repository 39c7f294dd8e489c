//! Long days: a peak, an upgrade, and two weeks in which nobody was there.

use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;

const EFFECTS: &str = "select count(*) from trial.effects";
const TWICE: &str = "select count(*) - count(distinct id) from trial.effects";

/// F69: the consumer died with marks ahead of its position, and comes back after the marks' retention is
/// over. The purge leaves those marks alone, and nothing happens twice.
#[tokio::test(flavor = "multi_thread")]
async fn f69_after_fifteen_days_of_stop_nothing_happens_twice() {
    let rig = require_service!(Rig::set("batch_max = 8").await);
    rig.publish(40, "order").await;
    let mut member = rig.start();
    rig.until_settled().await;
    rig.run("begin; select from posthaste.inbox_partitions for update").await;
    rig.publish(60, "order").await;
    rig.until(EFFECTS, 100).await;
    member.kill9();
    rig.run("commit").await;
    assert_eq!(rig.positions().await.into_values().sum::<i64>(), 40, "nobody could save");
    rig.run(
        "update posthaste.inbox set processed_at = processed_at - interval '15 days';
         update posthaste.inbox_partitions set taken_at = taken_at - interval '15 days', saved_at = saved_at - interval '15 days'",
    )
    .await;

    // It cleans up before it does anything else.
    rig.cli(&["pause", "--consumer", "billing", "--reason", "a purge comes first"]).ok();
    let member = rig.start();
    let purged = "select (count(*) <= 60)::int::bigint from posthaste.inbox";
    rig.until(purged, 1).await;
    assert_eq!(
        rig.count("select count(*) from posthaste.inbox").await,
        60,
        "those ahead of the position stay"
    );
    rig.cli(&["resume", "--consumer", "billing"]).ok();
    eventually("all of them came again", WAIT, || async {
        (member.handled("duplicate").await >= 60.0).then_some(())
    })
    .await;
    rig.publish(20, "order").await;
    rig.until(EFFECTS, 120).await;
    rig.until_saved().await;
    member.stop().await;
    assert_eq!((rig.count(TWICE).await, rig.count(EFFECTS).await), (0, 120));
}

/// A peak: much more comes than can be handled. The lag is seen, and falls to nothing; all of it happens
/// once, in order.
#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_peak_is_worked_off() {
    const LAG: &str = "posthaste_consumer_lag_messages";
    let kafka = require_service!(crate::kafka::shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 6, "").await);
    let member = rig.start();
    rig.publish(8, "order").await;
    rig.until_settled().await;
    rig.publish_mixed(5_000, |n| if n < 600 { "slow" } else { "order" }).await;
    eventually("the lag grows", WAIT, || async { (member.metric(LAG).await > 500.0).then_some(()) }).await;
    rig.until_settled().await;
    eventually("the lag is gone", WAIT, || async { (member.metric(LAG).await == 0.0).then_some(()) }).await;
    member.page("/readyz", "that it is idle", |status, body| status == 200 && body.contains("idle")).await;
    assert_eq!((rig.count(TWICE).await, rig.count(EFFECTS).await), (0, 5_008));
    rig.finish(member, "after a peak").await;
}

/// F89: a newer version has migrated the schema while this one consumes. It goes on, and may be started,
/// as long as the schema says that it can be lived with; otherwise a start is refused, with words.
#[tokio::test(flavor = "multi_thread")]
async fn f89_a_newer_schema_is_lived_with_under_load_or_refused_at_the_start() {
    let rig = require_service!(Rig::set("batch_max = 8").await);
    rig.publish(200, "slow").await;
    let first = rig.start();
    rig.until(EFFECTS, 20).await;
    rig.run(
        "insert into posthaste.migrations (version, name, checksum, oldest)
         select max(version) + 1, 'of the next version', 'x', max(version) from posthaste.migrations",
    )
    .await;
    let second = rig.start();
    rig.until_shared_by(&[&first, &second]).await;
    rig.publish(200, "slow").await;
    rig.until_settled().await;
    rig.check("with two versions side by side").await;

    rig.run("update posthaste.migrations set oldest = version where name = 'of the next version'").await;
    let third = rig.start();
    third.says("install a newer posthaste").await;
    rig.publish(40, "order").await;
    rig.until_settled().await;
    rig.until_shared_by(&[&first, &second]).await;
    drop(third);
    second.stop().await;
    rig.finish(first, "after an upgrade").await;
}
