//! A migration that takes longer than a handler may.

use crate::handlers::assert_innocent;
use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use std::time::Duration;
use tokio::time::Instant;

/// How long the handler's table is locked, and what a handler may take: some seconds and two, or with
/// `POSTHASTE_SOAK=1` two minutes and the default.
fn migration() -> (Duration, &'static str, bool) {
    let is_soak = std::env::var_os("POSTHASTE_SOAK").is_some_and(|value| !value.is_empty() && value != "0");
    let (seconds, settings) =
        if is_soak { (120, "batch_max = 8") } else { (7, "batch_max = 8\nhandler_timeout_ms = 2000") };
    (Duration::from_secs(seconds), settings, is_soak)
}

/// Handlers wait for the lock until their time is over, again and again. No attempt is spent, nothing dies,
/// it is shown, and it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_outlasts_a_handlers_time_costs_nobody_an_attempt() {
    let (time, settings, is_soak) = migration();
    let rig = require_service!(Rig::set(settings).await);
    rig.publish(20, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    rig.run("begin; lock table trial.effects in access exclusive mode").await;
    let began = Instant::now();
    rig.publish(40, "order").await;
    eventually("the migration is over, and handlers have met it", time + WAIT, || async {
        let seen = member.metric("posthaste_consumer_conflicts_total").await;
        (seen > 8.0 && began.elapsed() >= time).then_some(())
    })
    .await;
    eventually("the status says it", WAIT, || async {
        let said = rig.cli(&["consumers", "status", "billing", "--json"]).ok();
        said.contains("waits for a lock").then_some(())
    })
    .await;
    if is_soak {
        let said = |status: u16, body: &str| status == 503 && body.contains("has met a lock");
        member.page("/readyz", "that there is a lock", said).await;
    }
    assert_innocent(&rig, &member, "in a migration").await;
    rig.run("commit").await;
    rig.until_settled().await;
    assert_innocent(&rig, &member, "after a migration").await;
    rig.finish(member, "after a long migration").await;
}
