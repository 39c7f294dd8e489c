//! Several members of one group.

use crate::rig::Rig;
use posthaste_testkit::require_service;

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
    let so_far = rig.count("select count(*) from trial.effects").await;
    rig.until("select count(*) from trial.effects", so_far + 40).await;
    first.kill9();
    rig.check("right after a member's death").await;
    rig.publish(40, "order").await;
    rig.finish(second, "with one member left").await;
}
