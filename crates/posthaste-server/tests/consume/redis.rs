//! Redis from end to end, with a process that is killed: a stream as a plain log, and as a queue where no
//! order is asked for.

use crate::members::{SETTINGS, one_of_two_members_of_a_log_dies_under_load};
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Redis, RedisOptions};
use std::sync::Arc;

const EFFECTS: &str = "select count(*) from trial.effects";

#[tokio::test(flavor = "multi_thread")]
async fn g5_one_of_two_members_of_a_stream_dies_under_load() {
    let server = Arc::new(require_service!(Redis::start(&RedisOptions::default()).await));
    let rig = require_service!(Rig::set_on_redis_log(&server, SETTINGS).await);
    one_of_two_members_of_a_log_dies_under_load(&rig).await;
}

/// Without order two processes share a stream. One is killed with its hands full, and the other one gets that
/// when it has been idle for long enough: each effect once.
#[tokio::test(flavor = "multi_thread")]
async fn g5_two_processes_share_a_group_and_one_is_killed() {
    let server = require_service!(Redis::start(&RedisOptions::default()).await);
    let settings = "order = \"none\"\nbatch_max = 8\nretry = { delays_ms = [20, 50, 100] }";
    let rig = require_service!(Rig::set_on_redis(&server, "claim_after_ms = 2000", settings).await);
    let (mut first, second) = (rig.start(), rig.start());
    rig.append(1..=400, "slow").await;
    for member in [&first, &second] {
        member.says("subscribed").await;
    }
    rig.until(EFFECTS, 40).await;
    first.kill9();
    rig.check_but_order("right after a death").await;
    rig.append(401..=450, "late").await;
    rig.until(EFFECTS, 450).await;
    let group = rig.topic.clone();
    eventually("everything is acknowledged", crate::member::WAIT, || async {
        let pending = server.cli(&["XPENDING", &group, &group]).expect("a group");
        pending.trim().starts_with('0').then_some(())
    })
    .await;
    let status = rig.cli(&["consumers", "status"]).ok();
    assert!(status.contains("has no positions"), "{status}");
    let doctor = rig.cli(&["doctor"]);
    assert!(doctor.out.contains("0 entries of stream"), "{}{}", doctor.out, doctor.err);
    second.stop().await;
    rig.check_but_order("at the end").await;
    assert_eq!(rig.count(EFFECTS).await, 450);
    assert!(rig.positions().await.values().all(|position| *position == 0), "a queue has none");
}
