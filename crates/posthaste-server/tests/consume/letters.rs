//! Dead letters, when not everything around them is as it should be.

use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;

const EFFECTS: &str = "select count(*) from trial.effects";
const LETTERS: &str = "select count(*) from posthaste.inbox_dead_letters";
const REPLAY: [&str; 8] = ["dead", "replay", "--consumer", "billing", "--all", "--reason", "mended", "--yes"];

/// F54: nobody relays the outbox. The letter is written and its key goes on; whoever relays later tells of
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn f54_without_a_relay_nothing_is_blocked_and_nothing_is_lost() {
    let rig = require_service!(Rig::set("").await);
    rig.reconfigure("name = \"shop\"\n", "name = \"shop\"\nrelay = false\n");
    rig.publish(8, "order").await;
    rig.publish(1, "reject").await;
    rig.publish(16, "order").await;
    let member = rig.start();
    rig.finish(member, "without a relay").await;
    assert_eq!((rig.count(EFFECTS).await, rig.count(LETTERS).await), (24, 1));
    assert!(!rig.cli(&["local", "read", "orders.dead", "--json"]).out.contains("dead-code"));
    rig.reconfigure("relay = false\n", "");
    let member = rig.start();
    eventually("the event is told", WAIT, || async {
        let read = rig.cli(&["local", "read", "orders.dead", "--json"]);
        read.out.contains("dead-code").then_some(())
    })
    .await;
    rig.finish(member, "with a relay").await;
}

/// F59: two people replay one letter at the same moment, while live messages of its key flow. One wins, the
/// effect happens once, and under `hold` it happens before those that waited for it.
#[tokio::test(flavor = "multi_thread")]
async fn f59_two_replays_at_once_under_live_traffic_have_one_effect() {
    for on_dead in ["continue", "hold"] {
        let settings = format!("on_dead = \"{on_dead}\"\nmemory_wait_max_ms = 1000\nbatch_max = 8");
        let rig = require_service!(Rig::set(&settings).await);
        rig.publish(8, "order").await;
        rig.publish(1, "reject").await;
        let dead = rig.last();
        rig.publish(40, "order").await;
        let member = rig.start();
        rig.until(LETTERS, 1).await;
        rig.run("update trial.mood set fixed = true").await;
        rig.publish(80, "slow").await;
        let (one, other) = std::thread::scope(|scope| {
            let (one, other) = (scope.spawn(|| rig.cli(&REPLAY)), scope.spawn(|| rig.cli(&REPLAY)));
            (one.join().expect("it ran"), other.join().expect("it ran"))
        });
        let won = |ended: &crate::rig::Ended| ended.code == 0 && ended.out.contains("1 ");
        assert!(
            won(&one) != won(&other),
            "{on_dead}: one wins: {}{} | {}{}",
            one.out,
            one.err,
            other.out,
            other.err
        );
        rig.publish(40, "order").await;
        rig.until(EFFECTS, rig.last().into()).await;
        rig.until_settled().await;
        member.stop().await;
        let of_key = format!("select count(*) from trial.effects where key = 'k{}' and n < {dead}", dead % 8);
        let before = format!(
            "select count(*) from trial.effects where key = 'k{0}' and seq < (select seq from trial.effects where n = {dead})",
            dead % 8
        );
        match on_dead {
            "hold" => assert_eq!(rig.count(&before).await, rig.count(&of_key).await, "hold: in its place"),
            _ => assert!(rig.count(&before).await >= rig.count(&of_key).await, "continue: behind later ones"),
        }
        rig.check(on_dead).await;
        assert_eq!(rig.count("select count(*) from posthaste.audit where action = 'replay'").await, 1);
    }
}

/// Somebody's tool sends a dead letter back to its topic with its id: it is handled, once, although its mark
/// is there. A second copy is a duplicate.
#[tokio::test(flavor = "multi_thread")]
async fn g6_a_redriven_copy_is_handled_once() {
    for on_dead in ["continue", "hold"] {
        let settings = format!("on_dead = \"{on_dead}\"\nmemory_wait_max_ms = 1000\nbatch_max = 8");
        let rig = require_service!(Rig::set(&settings).await);
        rig.publish(8, "order").await;
        rig.publish(1, "reject").await;
        let dead = rig.last();
        rig.publish(24, "order").await;
        let member = rig.start();
        rig.until(LETTERS, 1).await;
        rig.run("update trial.mood set fixed = true").await;
        rig.publish_again(dead, "reject").await;
        rig.until(EFFECTS, rig.last().into()).await;
        rig.publish_again(dead, "reject").await;
        rig.until(EFFECTS, rig.last().into()).await;
        eventually("the second copy is a duplicate", WAIT, || async {
            (member.handled("duplicate").await >= 1.0).then_some(())
        })
        .await;
        assert_eq!(rig.count(LETTERS).await, 0, "{on_dead}");
        assert_eq!(member.metric("posthaste_consumer_redriven_total").await, 1.0, "{on_dead}");
        rig.finish(member, on_dead).await;
    }
}
