//! The acceptance list of a messaging platform on Kafka, by its words and in its tables: a cut cable, poison,
//! scaling, lag. And a member that was frozen for longer than its session.

use crate::member::WAIT;
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{ForeignRecord, Kafka, KafkaOptions, ServiceError};
use rustix::process::Signal;
use tokio::sync::OnceCell;

pub(crate) const EFFECTS: &str = "select count(*) from trial.effects";
const PHOENIX: &str = "tables = \"phoenix\"";

/// The broker of all tests of this binary: it takes seconds to start, and each test has a topic of its own.
pub(crate) async fn shared() -> Result<&'static Kafka, ServiceError> {
    static SHARED: OnceCell<Result<Kafka, ServiceError>> = OnceCell::const_new();
    SHARED
        // What compacts looks again soon, and not after 15 s.
        .get_or_init(async || {
            let options = KafkaOptions::default().setting("log.cleaner.backoff.ms=200");
            // The times of groups of the newer protocol are those of the classic one here.
            let times = [
                ("group.consumer.min.session.timeout.ms", 6_000),
                ("group.consumer.session.timeout.ms", 6_000),
                ("group.consumer.min.heartbeat.interval.ms", 1_000),
                ("group.consumer.heartbeat.interval.ms", 1_000),
            ];
            let set = |options: KafkaOptions, (name, ms)| options.setting(&format!("{name}={ms}"));
            Kafka::start(&times.into_iter().fold(options, set)).await
        })
        .await
        .as_ref()
        .map_err(Clone::clone)
}

/// The cut cable: the consumer is gone while it handles a message. Whoever comes next takes the same
/// message, and its effect happens once, as one row in `sys.request_keys` says. And again.
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_cut_cable_in_a_handler_leaves_one_effect() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, PHOENIX).await);
    rig.publish(8, "order").await;
    rig.publish(1, "block").await;
    let blocked = format!("select count(*) from trial.effects where id = 'm{}'", rig.last());
    let key = format!("select count(*) from sys.request_keys where request_key = 'billing:m{}'", rig.last());
    rig.publish(8, "order").await;
    for _ in 0..2 {
        rig.client.batch_execute("select pg_advisory_lock(4711)").await.expect("the handler will wait");
        let mut member = rig.start();
        let waits = "select count(*) from pg_locks where locktype = 'advisory' and objid = 4711 and not granted \
                     and database = (select oid from pg_database where datname = current_database())";
        rig.until(waits, 1).await;
        member.kill9();
        rig.client.batch_execute("select pg_advisory_unlock(4711)").await.expect("the lock was ours");
        rig.check("right after the cut").await;
        assert_eq!((rig.count(&blocked).await, rig.count(&key).await), (0, 0), "it was in the middle of it");
    }
    let member = rig.start();
    rig.finish(member, "after two cuts").await;
    assert_eq!((rig.count(&blocked).await, rig.count(&key).await, rig.count(EFFECTS).await), (1, 1, 17));
}

/// Poison: what is no JSON is in `sys.dead_letters`, and the next one is handled, although there is no
/// dead-letter topic yet. When there is, the bytes are on it.
#[tokio::test(flavor = "multi_thread")]
async fn f71_malformed_json_is_a_dead_letter_and_the_next_message_is_handled() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, PHOENIX).await);
    rig.publish(4, "order").await;
    let malformed = br#"{"n": 5, "#.to_vec();
    let record = ForeignRecord {
        key: Some(b"k1".to_vec()),
        value: Some(malformed.clone()),
        headers: vec![("type".to_owned(), Some(b"order".to_vec()))],
    };
    let dead = format!("{}.dead", rig.topic);
    kafka.delete_topic(&dead).await.expect("deleted");
    kafka.send(&rig.topic, &[record], None).await.expect("sent");
    rig.publish(4, "order").await;
    let member = rig.start();
    rig.until(EFFECTS, 8).await;
    let shown = format!(
        "select count(*) from sys.dead_letters where original_topic = '{}' and original_offset = 4 \
          and decode(payload ->> 'data', 'base64') = '{{\"n\": 5, '::bytea and exception_class = 'message.json'",
        rig.topic
    );
    rig.until(&shown, 1).await;
    rig.until("select count(*) from posthaste.inbox_dead_letters where disposition = 'decode'", 1).await;
    kafka.create_topic(&dead, 1, 1, &[]).await.expect("created");
    let told = eventually("the dead-letter topic has it", WAIT, || async {
        kafka.dump(&dead).await.expect("the Java client reads").pop()
    })
    .await;
    assert_eq!(told.value, Some(malformed), "the bytes as they came");
    assert_eq!(told.key.as_deref(), Some(&b"0"[..]), "the original partition");
    assert_eq!(told.header("dead-topic").as_deref(), Some(&*rig.topic));
    rig.finish(member, "after poison").await;
}

/// Scaling: a second and a third member take partitions of the first under load; nothing is twice or lost.
/// The lag is seen while it is there, and falls.
#[tokio::test(flavor = "multi_thread")]
async fn g5_members_that_come_share_the_load_and_the_lag_falls() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 6, &format!("{PHOENIX}\nbatch_max = 8")).await);
    rig.publish(600, "slow").await;
    let first = rig.start();
    eventually("the lag is seen", WAIT, || async {
        (first.metric("posthaste_consumer_lag_messages").await > 100.0).then_some(())
    })
    .await;
    let second = rig.start();
    rig.until_shared_by(&[&first, &second]).await;
    let third = rig.start();
    rig.until_shared_by(&[&first, &second, &third]).await;
    rig.publish(120, "order").await;
    rig.until_settled().await;
    for member in [&first, &second, &third] {
        eventually("the lag is gone", WAIT, || async {
            (member.metric("posthaste_consumer_lag_messages").await == 0.0).then_some(())
        })
        .await;
    }
    third.stop().await;
    second.stop().await;
    rig.publish(40, "order").await;
    rig.finish(first, "with three members that came and went").await;
    let shown = "select count(*) from sys.consumer_offsets_log l join posthaste.inbox_partitions p
                  on (l.topic, l.partition, l.committed_offset) = (p.topic, p.partition, p.position)";
    assert_eq!(rig.count(shown).await, rig.positions().await.len() as i64, "positions, as people read them");
}

/// F66: a member that was frozen in the middle of its work, for longer than its session, knows nothing of
/// it when it goes on. Its messages are somebody else's, and nothing of it happens twice or out of order.
#[tokio::test(flavor = "multi_thread")]
async fn f66_a_frozen_member_does_nothing_twice_when_it_goes_on() {
    let kafka = require_service!(shared().await);
    let settings = "batch_max = 8\nhandler_timeout_ms = 1000";
    let rig = require_service!(Rig::set_on_kafka(kafka, 2, settings).await);
    rig.publish(300, "slow").await;
    let frozen = rig.start();
    rig.until(EFFECTS, 30).await;
    frozen.signal(Signal::STOP);
    let other = rig.start();
    rig.until_shared_by(&[&other]).await;
    rig.publish(100, "order").await;
    let so_far = rig.count(EFFECTS).await;
    rig.until(EFFECTS, so_far + 20).await;
    frozen.signal(Signal::CONT);
    rig.until_settled().await;
    rig.check("with a member that was frozen").await;
    frozen.stop().await;
    rig.publish(40, "order").await;
    rig.finish(other, "after a member that was frozen").await;
}

/// The doctor looks at the consumer's broker, and joins no group: a topic whose name is wrong is named, and a
/// broker that is away.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_a_topic_that_is_not_there() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 2, "").await);
    rig.publish(9, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    rig.until_committed().await;
    let ask = |thing: &str, other: &str| {
        let said = rig.cli_but(thing, other, &["doctor", "--json"]).out;
        let remarks: Vec<serde_json::Value> = serde_json::from_str(&said).expect("a list");
        let of_consumer = remarks.into_iter().filter(|remark| remark["of"] == "consumer billing");
        let line = |remark: serde_json::Value| {
            let word = |name: &str| remark[name].as_str().expect("a text").to_owned();
            format!("{} {}: {}", word("level"), word("check"), word("text"))
        };
        of_consumer.map(line).collect::<Vec<_>>().join("\n")
    };
    let topics = format!("topics = [\"{}\"]", rig.topic);
    let said = ask(&topics, &topics);
    for part in ["ok consumer_rights: ", "ok reachable: ", "ok topic: ", "ok group: ", "is 0 messages behind"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = ask(&topics, "topics = [\"ordres\"]");
    assert!(said.contains("fail topic: ") && said.contains("ordres"), "{said}");
    let said = ask(&kafka.bootstrap(), "127.0.0.1:1");
    assert!(said.contains("fail reachable: ") && said.contains("127.0.0.1:1"), "{said}");
    let away = rig.cli_but(&kafka.bootstrap(), "127.0.0.1:1", &["consumers", "status", "billing"]).ok();
    assert!(away.contains("could not be asked"), "{away}");
    rig.finish(member, "with a doctor about").await;
}
