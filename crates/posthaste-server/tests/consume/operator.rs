//! What an operator sees and does: dead letters, their topic, replays, traces, seeks.

use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;

const EFFECTS: &str = "select count(*) from trial.effects";

/// G6: a dead letter is told of on its topic by the relay of the same process, and a replay brings it back.
#[tokio::test(flavor = "multi_thread")]
async fn g6_a_dead_letter_is_told_of_and_comes_back_by_a_replay() {
    let rig = require_service!(Rig::set("").await);
    rig.publish(8, "order").await;
    rig.publish(1, "reject").await;
    let id = format!("m{}", rig.last());
    rig.publish(8, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let told = eventually("the dead-letter topic has the event", WAIT, || async {
        let read = rig.cli(&["local", "read", "orders.dead", "--json"]);
        read.out.contains("dead-code").then_some(read.out)
    })
    .await;
    assert!(told.contains(&id) && told.contains("no order") && told.contains("handler.rejected"), "{told}");
    assert_eq!(told.trim().lines().count(), 1, "one event: {told}");

    let dead = rig.cli(&["dead", "list", "--consumer", "billing", "--json"]).ok();
    assert!(dead.contains(&id) && dead.contains("rejected"), "{dead}");
    assert!(rig.cli(&["trace", &id]).ok().contains("dead"), "a trace says where it is");
    rig.client.batch_execute("update trial.mood set fixed = true").await.expect("mended");
    rig.cli(&["dead", "replay", "--consumer", "billing", "--all", "--reason", "mended", "--yes"]).ok();
    rig.until(EFFECTS, 17).await;
    let trace = rig.cli(&["trace", &id]).ok();
    assert!(trace.contains("done") && trace.contains("orders"), "{trace}");
    assert_eq!(rig.count("select count(*) from posthaste.inbox_dead_letters").await, 0);
    rig.finish(member, "after a replay").await;
}

/// Marks still protect: a seek backwards brings everything again, and repeats nothing.
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_seek_backwards_repeats_nothing() {
    let rig = require_service!(Rig::set("").await);
    rig.publish(60, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    for partition in ["0", "1"] {
        let place =
            ["--topic", "orders", "--partition", partition, "--to", "earliest", "--reason", "a trial"];
        rig.cli(&[&["consumers", "seek", "billing"], &place[..]].concat()).ok();
    }
    eventually("everything came again", WAIT, || async {
        (member.handled("duplicate").await >= 60.0).then_some(())
    })
    .await;
    rig.publish(20, "order").await;
    rig.until_settled().await;
    assert_eq!(rig.count(EFFECTS).await, 80);
    rig.finish(member, "after a seek").await;
}

/// Whoever moves the group at the broker moves nothing, and is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_was_moved_at_the_broker_has_no_effect_and_is_shown() {
    let rig = require_service!(Rig::set("batch_max = 8\nin_hand_max = 8").await);
    rig.publish(60, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    rig.cli(&["local", "seek", &rig.topic, &rig.topic, "--to", "earliest"]).ok();
    member.says("the broker's position is not ours").await;
    rig.publish(20, "order").await;
    rig.until_settled().await;
    assert!(member.metric("posthaste_consumer_foreign_positions_total").await >= 1.0);
    assert_eq!(member.handled("duplicate").await, 0.0, "nothing came again");
    rig.finish(member, "after a reset at the broker").await;

    // While nobody runs, `status` sees it by itself.
    let status = || rig.cli(&["consumers", "status", "billing"]).ok();
    assert!(!status().contains("not ours"), "the broker's position is ours again: {}", status());
    rig.cli(&["local", "seek", &rig.topic, &rig.topic, "--to", "earliest"]).ok();
    let said = status();
    assert!(said.contains("foreign") && said.contains("the broker's position is 0, not ours"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
}
