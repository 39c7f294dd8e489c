//! From an outbox over a queue of RabbitMQ to a handler, with processes that are killed.

use crate::member::Member;
use crate::rig::Rig;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{Rabbitmq, shared_rabbitmq};

const EFFECTS: &str = "select count(*) from trial.effects";

/// Declares a durable queue with these arguments, in Erlang's words.
pub(crate) async fn declare(server: &Rabbitmq, queue: &str, arguments: &str) {
    let name = format!("rabbit_misc:r(<<\"/\">>, queue, <<{queue:?}>>)");
    let declare = format!(
        "element(1, rabbit_amqqueue:declare({name}, true, false, [{arguments}], none, <<\"guest\">>))"
    );
    assert_eq!(server.eval(&declare).await.expect("declared"), "{ok, new}");
}

/// Each of three processes relays and consumes. Those that work are killed, one after the other: each effect
/// happens once, and each key stays in order.
#[tokio::test(flavor = "multi_thread")]
async fn g5_processes_that_read_a_queue_are_killed_and_each_effect_happens_once_and_in_order() {
    let server = require_service!(shared_rabbitmq().await);
    let rig = require_service!(Rig::set_on_rabbitmq(server, "retry = { delays_ms = [20, 50, 100] }").await);
    rig.append(1..=300, "order").await;
    let mut members: Vec<Member> = (0..3).map(|_| rig.start()).collect();
    for round in 1..=3 {
        rig.until(EFFECTS, 200 * i64::from(round)).await;
        rig.append(200 * round + 101..=200 * round + 299, "order").await;
        rig.append(200 * round + 300..=200 * round + 300, "late").await;
        members.remove(0).kill9();
        rig.check("right after a death").await;
        members.push(rig.start());
    }
    rig.until(EFFECTS, 900).await;
    rig.check("after three deaths").await;
    assert_eq!(rig.count("select count(*) from posthaste.inbox_dead_letters").await, 0);
    assert!(rig.positions().await.values().all(|position| *position == 0), "a queue has none");

    let status = rig.cli(&["consumers", "status"]).ok();
    assert!(status.contains("has no positions"), "{status}");
    let topic = rig.topic.clone();
    for args in [
        &[
            "consumers",
            "seek",
            "billing",
            "--topic",
            &topic,
            "--partition",
            "0",
            "--to",
            "latest",
            "--reason",
            "t",
        ][..],
        &[
            "consumers",
            "seek",
            "billing",
            "--topic",
            &topic,
            "--partition",
            "0",
            "--to",
            "5",
            "--reason",
            "t",
        ],
        &[
            "consumers",
            "replay",
            "billing",
            "--topic",
            &topic,
            "--from",
            "earliest",
            "--to",
            "latest",
            "--reason",
            "t",
        ],
    ] {
        let refused = rig.cli(args);
        assert!(refused.code != 0 && refused.err.contains("has no positions"), "{args:?}: {}", refused.err);
    }
    let doctor = rig.cli(&["doctor", "--json"]);
    assert!(doctor.out.contains("single active consumer"), "{}{}", doctor.out, doctor.err);
    for member in members {
        member.stop().await;
    }
    rig.check("at the end").await;
}

/// A queue that cannot keep the order is refused with what to declare.
#[tokio::test(flavor = "multi_thread")]
async fn f45_a_classic_queue_is_refused_with_what_to_declare() {
    let server = require_service!(shared_rabbitmq().await);
    let rig = require_service!(Rig::set_on_rabbitmq(server, "").await);
    let classic = format!("{}.classic", rig.topic);
    declare(server, &classic, "").await;
    let topic = rig.topic.clone();
    rig.reconfigure(&format!("topics = [\"{topic}\"]"), &format!("topics = [\"{classic}\"]"));
    let member = rig.start();
    let said = member.says("x-queue-type = quorum").await;
    assert!(said.contains(&classic), "{said}");
    member.page("/readyz", "it is not ready", |status, _| status == 503).await;
}
