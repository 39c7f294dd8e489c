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
        let won = |ended: &crate::rig::Ended| ended.code == 0 && ended.out.contains("1 dead letter replayed");
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

/// A letter is handled again without a header, and a range, too. What must stay is refused before anything is
/// done, in words.
#[tokio::test(flavor = "multi_thread")]
async fn headers_can_be_left_out_of_what_is_handled_again() {
    let rig = require_service!(Rig::set("identity = [\"id\", \"header:x-order\"]").await);
    let headers = [("type", "reject"), ("x-order", "7"), ("x-debug", "1"), ("saga-id", "s"), ("note", "n")];
    rig.publish_with(1, &headers).await;
    let member = rig.start();
    rig.until(LETTERS, 1).await;
    rig.until_saved().await;
    member.stop().await;

    let refused = |list: [&str; 2], said: &str| {
        let ended = rig.cli(&[&REPLAY[..], &list[..]].concat());
        assert!(ended.code == 2 && ended.err.contains(said), "{list:?}: {}", ended.err);
    };
    refused(["--drop-headers", "x-debug,saga-id"], "its saga would wait");
    refused(["--drop-headers", "X-Order"], "the message is known by it");
    refused(["--drop-headers", "type"], "handlers are chosen by it");
    refused(["--keep-headers", "x-*-y"], "names no header");
    let both = rig.cli(&[&REPLAY[..], &["--keep-headers", "a", "--drop-headers", "b"]].concat());
    assert_eq!(both.code, 2, "{}", both.err);
    let of_a_sink = ["dead", "replay", "--all", "--reason", "x", "--drop-headers", "a"];
    let of_a_sink = rig.cli(&of_a_sink);
    assert!(of_a_sink.code == 2 && of_a_sink.err.contains("as it was appended"), "{}", of_a_sink.err);
    assert_eq!(rig.count(LETTERS).await, 1, "nothing was done");

    let kept = "select array(select h ->> 0 from jsonb_array_elements(headers) h
                              where lower(h ->> 0) <> 'message-id' order by (h ->> 0) collate \"C\")
                  from posthaste.inbox_deferred where holds = $1";
    let is_kept = async |holds: bool, names: &[&str]| {
        let found = rig.client.query(kept, &[&holds]).await.expect("headers");
        let found: Vec<Vec<String>> = found.iter().map(|row| row.get(0)).collect();
        assert_eq!(found, [names]);
    };
    rig.cli(&[&REPLAY[..], &["--drop-headers", "x-*"]].concat()).ok();
    is_kept(true, &["key", "note", "saga-id", "type", "x-order"]).await;
    let range = ["consumers", "replay", "billing", "--topic", &rig.topic, "--from", "earliest", "--repeat"];
    rig.cli(&[&range[..], &["--keep-headers", "x-debug", "--reason", "once more"]].concat()).ok();
    is_kept(false, &["saga-id", "type", "x-debug", "x-order"]).await;
    let audited = "select count(*) from posthaste.audit where detail -> 'headers' is not null";
    assert_eq!(rig.count(audited).await, 2);
    rig.run("update trial.mood set fixed = true").await;
    let member = rig.start();
    rig.until(EFFECTS, 2).await;
    member.stop().await;
}
