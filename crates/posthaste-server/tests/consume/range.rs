//! A range of a topic once more, and places by time: on each broker.

#[cfg(feature = "kafka")]
use crate::kafka::shared;
use crate::rig::Rig;
use posthaste::clock::{Clock, SystemClock};
use posthaste_testkit::require_service;
use serde_json::Value;
use std::collections::BTreeMap;

const EFFECTS: &str = "select count(*) from trial.effects";
const DONE: &str = "select count(*) from posthaste.inbox where outcome = 'd'";

/// Says it to the command, and reads its answer.
fn replay(rig: &Rig, more: &[&str]) -> Value {
    let base = ["consumers", "replay", "billing", "--topic", &rig.topic, "--json"];
    serde_json::from_str(&rig.cli(&[&base[..], more].concat()).ok()).expect("JSON")
}

fn seek(rig: &Rig, partition: i32, to: &str) -> i64 {
    let partition = partition.to_string();
    let place =
        ["--topic", &rig.topic, "--partition", &partition, "--to", to, "--reason", "a trial", "--json"];
    let said = rig.cli(&[&["consumers", "seek", "billing"], &place[..]].concat()).ok();
    serde_json::from_str::<Value>(&said).expect("JSON")["position"].as_i64().expect("a position")
}

/// A column of the command's table.
fn column(said: &Value, name: &str) -> BTreeMap<i32, i64> {
    let rows = said["partitions"].as_array().expect("partitions").iter();
    let number = |row: &Value, name: &str| row[name].as_i64().expect("a number");
    rows.map(|row| (number(row, "partition") as i32, number(row, name))).collect()
}

/// What was skipped is handled once, in the order of its keys, and nobody is moved: not the group at the
/// broker, and not the consumer.
async fn a_skipped_range(rig: Rig) {
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    member.stop().await;
    rig.publish(40, "order").await;
    for partition in rig.positions().await.into_keys() {
        seek(&rig, partition, "latest");
    }
    let member = rig.start();
    rig.publish(20, "order").await;
    rig.until(EFFECTS, 60).await;
    rig.until_saved().await;
    let (committed, positions) = (rig.until_committed().await, rig.positions().await);

    let said = replay(&rig, &["--from", "earliest", "--reason", "they were skipped", "--chunk", "7"]);
    assert_eq!((&said["matched"], &said["copied"]), (&100.into(), &40.into()), "{said}");
    assert_eq!((column(&said, "to"), column(&said, "reached")), (positions.clone(), positions.clone()));
    rig.until(DONE, 100).await;
    let back = "select count(*) from (select n < lag(n) over (partition by key order by seq) as back \
                from trial.effects where n between 41 and 80) e where back";
    assert_eq!(rig.count(back).await, 0, "a key of the range is out of order");
    rig.check_but_order("after a replay of a range").await;
    let audited = "select coalesce(sum((detail ->> 'count')::int), 0) from posthaste.audit \
                   where action = 'replay range' and reason = 'they were skipped'";
    assert_eq!(rig.count(audited).await, 40, "G6: each chunk is audited");
    assert_eq!((rig.committed().await, rig.positions().await), (committed, positions), "nobody was moved");

    let again = replay(&rig, &["--from", "2h", "--reason", "again"]);
    assert_eq!((&again["matched"], &again["copied"]), (&100.into(), &0.into()), "all have their mark");
    let place = "[consumers.billing]\n";
    let short = format!("{place}retention = {{ marks_days = 0 }}\n");
    let old =
        ["consumers", "replay", "billing", "--topic", &rig.topic, "--from", "earliest", "--reason", "x"];
    let refused = rig.cli_but(place, &short, &old);
    assert!(refused.code == 2 && refused.err.contains("older than the marks"), "{}", refused.err);
    rig.check_but_order("after a replay that had nothing to do").await;
    member.stop().await;
}

/// With `--repeat` it is handled once more, up to the saved position and not beyond. A copy that dies leaves
/// its mark as it is, and holds nobody up.
async fn a_repeated_range(rig: Rig) {
    rig.client.batch_execute("update trial.mood set fixed = true").await.expect("mended");
    rig.publish(20, "order").await;
    rig.publish(1, "reject").await;
    let member = rig.start();
    rig.until_settled().await;
    member.stop().await;
    rig.publish(8, "order").await;
    let positions = rig.positions().await;
    let status = rig.cli(&["consumers", "status", "billing", "--json"]).ok();
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let shown = status["consumers"][0]["partitions"].as_array().expect("partitions");
    assert_eq!(shown.iter().filter_map(|row| row["lag"].as_i64()).sum::<i64>(), 8, "{status}");

    let looked = replay(&rig, &["--from", "earliest", "--repeat", "--dry-run"]);
    assert_eq!((&looked["matched"], &looked["copied"]), (&21.into(), &0.into()), "{looked}");
    assert_eq!(column(&looked, "to"), positions, "never beyond the saved position");
    let one = replay(&rig, &["--from", "0", "--repeat", "--dry-run", "--key", "k1", "--type", "ord*"]);
    assert_eq!(one["matched"], 3, "of 1 to 20: 1, 9 and 17: {one}");
    rig.client.batch_execute("update trial.mood set fixed = false").await.expect("broken");
    let said = replay(&rig, &["--from", "earliest", "--repeat", "--reason", "effects were lost"]);
    assert_eq!(said["copied"], 21, "{said}");
    assert_eq!(rig.count(DONE).await, 21, "marks are as they were");

    let member = rig.start();
    let letter = "select count(*) from posthaste.inbox_dead_letters where repeat and not holds_key";
    rig.until(letter, 1).await;
    rig.until(EFFECTS, 21 + 20 + 8).await;
    rig.publish(8, "order").await;
    rig.until(EFFECTS, 21 + 20 + 16).await;
    rig.until_saved().await;
    let twice = "select count(*) from (select id from trial.effects group by id having count(*) = 2) e";
    assert_eq!(
        (rig.count(twice).await, rig.count(DONE).await),
        (20, 37),
        "once more, and marks as they were"
    );
    assert_eq!(rig.count("select count(*) from posthaste.inbox_deferred").await, 0);
    member.stop().await;
}

/// A time is a place: the first message at or after it.
async fn a_time(rig: Rig) {
    rig.publish(12, "order").await;
    let between = SystemClock.now().rfc3339();
    rig.publish(12, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    member.stop().await;
    let first = rig.spread(12).await;
    let said = replay(&rig, &["--from", &between, "--repeat", "--dry-run"]);
    assert_eq!((column(&said, "from"), &said["matched"]), (first.clone(), &12.into()), "{said}");
    let said = replay(&rig, &["--from", "earliest", "--to", &between, "--repeat", "--dry-run"]);
    assert_eq!((column(&said, "to"), &said["matched"]), (first.clone(), &12.into()), "{said}");
    for (partition, position) in first {
        assert_eq!(seek(&rig, partition, &between), position);
        assert_eq!(seek(&rig, partition, "earliest"), 0);
        assert_eq!(rig.positions().await[&partition], 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_a_skipped_range_is_handled_once_on_the_local_broker() {
    a_skipped_range(require_service!(Rig::set("").await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g5_a_repeat_ends_at_the_saved_position_on_the_local_broker() {
    a_repeated_range(require_service!(Rig::set("").await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_is_a_place_on_the_local_broker() {
    a_time(require_service!(Rig::set("").await)).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_skipped_range_is_handled_once_on_kafka() {
    let kafka = require_service!(shared().await);
    a_skipped_range(require_service!(Rig::set_on_kafka(kafka, 2, "").await)).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn g5_a_repeat_ends_at_the_saved_position_on_kafka() {
    let kafka = require_service!(shared().await);
    a_repeated_range(require_service!(Rig::set_on_kafka(kafka, 2, "").await)).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread")]
async fn a_time_is_a_place_on_kafka() {
    let kafka = require_service!(shared().await);
    a_time(require_service!(Rig::set_on_kafka(kafka, 2, "").await)).await;
}
