//! Several members of one group.

use crate::rig::Rig;
use posthaste_testkit::require_service;

const EFFECTS: &str = "select count(*) from trial.effects";

/// A message that fails is tried again at once, and then deferred.
#[cfg(any(feature = "nats", feature = "redis"))]
pub(crate) const SETTINGS: &str =
    "batch_max = 8\nretry = { delays_ms = [10], then = { max_attempts = 5, initial_ms = 50, max_ms = 100 } }";

/// Messages that take their time, fail at first, or are rejected.
#[cfg(any(feature = "nats", feature = "redis"))]
pub(crate) fn kind(n: i32) -> &'static str {
    match n % 20 {
        3 => "late",
        7 => "reject",
        10.. => "slow",
        _ => "order",
    }
}

/// One of two dies under load: the other one takes its partition, and nothing is twice, missing or out of
/// order.
#[tokio::test(flavor = "multi_thread")]
async fn g5_one_of_two_members_dies_under_load() {
    let rig = require_service!(Rig::set("batch_max = 8").await);
    rig.publish(300, "slow").await;
    let mut first = rig.start();
    let second = rig.start();
    rig.until_shared_by(&[&first, &second]).await;
    rig.publish(300, "slow").await;
    let so_far = rig.count(EFFECTS).await;
    rig.until(EFFECTS, so_far + 40).await;
    first.kill9();
    rig.check("right after a member's death").await;
    rig.publish(40, "order").await;
    rig.finish(second, "with one member left").await;
}

/// One member reads a plain log, another one stands by. The one that reads dies, with retries, deferral and
/// dead letters under way: each effect once, each key in order, all of them.
#[cfg(any(feature = "nats", feature = "redis"))]
pub(crate) async fn one_of_two_members_of_a_log_dies_under_load(rig: &Rig) {
    rig.publish_mixed(300, kind).await;
    let mut first = rig.start();
    rig.until_shared_by(&[&first]).await;
    let second = rig.start();
    second.says("consuming billing").await;
    rig.publish_mixed(300, kind).await;
    rig.until(EFFECTS, 60).await;
    first.kill9();
    rig.check("right after the owner's death").await;
    rig.publish_mixed(40, kind).await;
    rig.finish(second, "with the member that stood by").await;
    assert_eq!(rig.count("select count(*) from posthaste.inbox_dead_letters").await, 32);
    assert_eq!(rig.count(EFFECTS).await, 608);
    let held = "select count(*) from posthaste.inbox_partitions where expires_at is not null";
    assert_eq!(rig.count(held).await, 0, "G8: a lease was left behind");
}
