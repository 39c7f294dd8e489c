//! Members that lost their partition and do not know it.

use crate::kafka::{EFFECTS, shared};
use crate::kafka_positions::seek;
use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use rustix::process::Signal;

/// Handlers that wait for a lock of the test.
pub(crate) const WAITS: &str = "select count(*) from pg_locks where locktype = 'advisory' and objid = 4711 and not granted \
                     and database = (select oid from pg_database where datname = current_database())";
pub(crate) const LETTERS: &str = "select count(*) from posthaste.inbox_dead_letters";
pub(crate) const FIX: &str = "update trial.mood set fixed = true";

/// 17 messages on one partition; the ninth one waits in its handler until [`unlock`].
pub(crate) async fn publish_blocked(rig: &Rig) {
    rig.client.batch_execute("select pg_advisory_lock(4711)").await.expect("the handler will wait");
    rig.publish(8, "order").await;
    rig.publish(1, "block").await;
    rig.publish(8, "order").await;
}

pub(crate) async fn unlock(rig: &Rig) {
    rig.client.batch_execute("select pg_advisory_unlock(4711)").await.expect("the lock was ours");
}

/// F66: frozen inside of a handler, with its transaction open and marks in it. Somebody else waits for those
/// marks, and not for ever.
#[tokio::test(flavor = "multi_thread")]
async fn f66_a_member_that_froze_in_an_open_transaction_comes_back_to_nothing() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "handler_timeout_ms = 1000").await);
    publish_blocked(&rig).await;
    let frozen = rig.start();
    rig.until(WAITS, 1).await;
    frozen.signal(Signal::STOP);
    unlock(&rig).await;
    let other = rig.start();
    rig.until_settled().await;
    rig.until_shared_by(&[&other]).await;
    frozen.signal(Signal::CONT);
    rig.publish(40, "order").await;
    rig.until_settled().await;
    rig.check("with a member that was frozen in a transaction").await;
    assert_eq!(rig.count(EFFECTS).await, 57);
    frozen.stop().await;
    rig.finish(other, "after it left").await;
}

/// Nothing fences anybody: two members of two groups read the same partitions for the same consumer.
#[tokio::test(flavor = "multi_thread")]
async fn g4_two_members_on_the_same_partitions_do_everything_once() {
    let kafka = require_service!(shared().await);
    let settings = "batch_max = 8\nretry = { delays_ms = [10], then = { max_attempts = 5, initial_ms = 50, max_ms = 100 } }";
    let rig = require_service!(Rig::set_on_kafka(kafka, 2, settings).await);
    let kind = |n| match n % 20 {
        3 => "late",
        7 | 12 => "reject",
        16.. => "slow",
        _ => "order",
    };
    rig.publish_mixed(120, kind).await;
    let first = rig.start();
    first.says("consuming billing").await;
    rig.reconfigure(&format!("group = \"{}\"", rig.topic), &format!("group = \"{}.other\"", rig.topic));
    let second = rig.start();
    for member in [&first, &second] {
        eventually("each has all partitions", WAIT, || async {
            (member.metric("posthaste_consumer_assigned").await == 2.0).then_some(())
        })
        .await;
    }
    rig.publish_mixed(200, kind).await;
    rig.until_settled().await;
    assert!(
        second.handled("duplicate").await + first.handled("duplicate").await > 0.0,
        "both read everything"
    );
    second.stop().await;
    rig.finish(first, "with two members on each partition").await;
    assert_eq!((rig.count(LETTERS).await, rig.count(EFFECTS).await), (32, 288));
}

/// F65: what began before is of an earlier life of the partition, although it is the same member's.
#[tokio::test(flavor = "multi_thread")]
async fn f65_a_partition_is_lost_and_regained_while_its_handler_runs() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "").await);
    publish_blocked(&rig).await;
    let member = rig.start();
    rig.until(WAITS, 1).await;
    let rebalances = "posthaste_consumer_rebalances_total";
    let before = member.metric(rebalances).await;
    kafka.evict(&rig.topic).await.expect("the member is put out");
    eventually("it is lost and regained", WAIT, || async {
        (member.metric(rebalances).await >= before + 2.0).then_some(())
    })
    .await;
    assert_eq!(rig.count(WAITS).await, 1, "the handler still runs");
    rig.publish(8, "order").await;
    unlock(&rig).await;
    rig.finish(member, "after it was regained").await;
    assert_eq!(rig.count(EFFECTS).await, 25);
}

/// An operator moves a partition while its former owner is frozen. What that one saves afterwards was true
/// before, and undoes nothing; in both directions.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_zombies_save_does_not_undo_a_seek() {
    let kafka = require_service!(shared().await);
    let settings = "batch_max = 8\nhandler_timeout_ms = 1000";
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, settings).await);
    rig.publish(150, "slow").await;
    let zombie = rig.start();
    rig.until(EFFECTS, 20).await;
    // It goes on and cannot save: when it is frozen, it has much to say.
    let lock = "begin; select from posthaste.inbox_partitions for update";
    rig.client.batch_execute(lock).await.expect("nobody saves");
    rig.until(EFFECTS, 80).await;
    zombie.signal(Signal::STOP);
    rig.client.batch_execute("commit").await.expect("others save");
    let other = rig.start();
    rig.until_settled().await;
    other.stop().await;
    // Nothing is begun, so the position says what saves do to it.
    rig.cli(&["pause", "--consumer", "billing", "--reason", "a trial"]).ok();
    for to in [10, 170] {
        let is_forward = to > 150;
        if is_forward {
            zombie.page("/readyz", "paused", |_, body| body.contains("paused by an operator")).await;
            zombie.signal(Signal::STOP);
            rig.publish(20, "order").await;
        }
        seek(&rig, 0, to);
        zombie.signal(Signal::CONT);
        // It has said everything when it is heard of again after it took the partition.
        rig.until("select count(*) from posthaste.inbox_partitions where owner is not null", 1).await;
        rig.client.batch_execute("delete from posthaste.processes").await.expect("forgotten");
        rig.until("select count(*) from posthaste.processes", 1).await;
        assert_eq!(rig.positions().await[&0], to, "the seek stands");
        if !is_forward {
            rig.cli(&["resume", "--consumer", "billing", "--reason", "a trial"]).ok();
            rig.until_settled().await;
            assert!(zombie.handled("duplicate").await >= 140.0, "everything came again");
            // What it says is of a moment ago: the next pause must be another one.
            zombie.page("/readyz", "it goes on", |_, body| !body.contains("paused by an operator")).await;
            rig.cli(&["pause", "--consumer", "billing", "--reason", "a trial"]).ok();
        }
    }
    rig.cli(&["resume", "--consumer", "billing", "--reason", "a trial"]).ok();
    rig.publish(8, "order").await;
    rig.until(EFFECTS, 158).await;
    zombie.stop().await;
    let skipped = "select count(*) from trial.effects where n between 151 and 170";
    assert_eq!(
        (rig.count(skipped).await, rig.count(EFFECTS).await),
        (0, 158),
        "what was sought over, and all"
    );
}
