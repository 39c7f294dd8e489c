//! Positions on Kafka: the group's is moved or forgotten, the log lost its beginning or its end, or is
//! another one. The database's position is the position, and what cannot be read there is never skipped in
//! silence.

use crate::kafka::{EFFECTS, shared};
use crate::kafka_members::{WAITS, publish_blocked, unlock};
use crate::member::{Member, WAIT};
use crate::rig::Rig;
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::require_service;
use posthaste_testkit::services::{ForeignRecord, Kafka, KafkaOptions, TransactionEnd};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use tokio::sync::RwLock;

/// So that a handful of messages is more than a member may have in hand.
const SMALL: &str = "batch_max = 8\nin_hand_max = 8";

pub(crate) fn seek(rig: &Rig, partition: i32, to: i64) {
    let (partition, to) = (partition.to_string(), format!("position:{to}"));
    let place = ["--topic", &rig.topic, "--partition", &partition, "--to", &to, "--reason", "a trial"];
    rig.cli(&[&["consumers", "seek", "billing"], &place[..]].concat()).ok();
}

/// Waits until a partition is stopped for this reason, and an operator is told what to do.
async fn stops(member: &Member, why: &str) {
    let is_told = |status, body: &str| status == 503 && body.contains(why);
    let told = member.page("/readyz", why, is_told).await;
    assert!(told.contains("posthaste consumers seek"), "{told}");
}

async fn until_position(rig: &Rig, partition: i32, position: i64) {
    eventually(&format!("position {position}"), WAIT, || async {
        (rig.positions().await.get(&partition) == Some(&position)).then_some(())
    })
    .await;
}

/// ADR 15: whoever moves the group's position, in either direction, or deletes it, moves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_moved_by_kafkas_tool_moves_nothing_and_is_shown() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, SMALL).await);
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.finish(member, "at first").await;
    for to in [Some(0), Some(80), None] {
        rig.publish(20, "order").await;
        kafka.move_group(&rig.topic, (&rig.topic, 0), to).await.expect("the group is empty");
        let member = rig.start();
        member.says("the broker's position is not ours").await;
        rig.until_settled().await;
        let foreign = member.metric("posthaste_consumer_foreign_positions_total").await;
        assert_eq!((foreign, member.handled("duplicate").await), (1.0, 0.0), "{to:?}");
        rig.finish(member, &format!("after the group was moved to {to:?}")).await;
        let group = kafka.committed(&rig.topic).await.expect("an answer");
        assert_eq!(group[&(rig.topic.clone(), 0)], i64::from(rig.last()), "it is written again");
    }
}

/// "From now on" is said once: a death before it is written down skips nothing that came later, and a
/// partition that is added is read from its beginning, whether anybody was there or not.
#[tokio::test(flavor = "multi_thread")]
async fn f62_from_now_on_outlives_a_death_and_added_partitions_are_read_whole() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 2, "start_from = \"latest\"").await);
    rig.publish(16, "order").await;
    let mut member = rig.start_to_die("consume.started@1");
    assert_eq!(member.ends().await.signal(), Some(9), "it died of SIGKILL at consume.started");
    let begun = "select count(position) from posthaste.inbox_partitions";
    assert_eq!(rig.count(begun).await, 0, "it died before it was written down");
    let member = rig.start();
    rig.until(begun, 2).await;
    rig.publish(16, "order").await;
    rig.until(EFFECTS, 16).await;
    member.stop().await;
    for (before, partitions, when) in [(2, 5, "while nobody was there"), (5, 6, "under a member's eyes")] {
        let so_far = rig.count(EFFECTS).await;
        let member = (before == 5).then(|| rig.start());
        if member.is_some() {
            rig.until("select count(*) from posthaste.inbox_partitions where owner is not null", 5).await;
        }
        kafka.grow_topic(&rig.topic, partitions).await.expect("partitions are added");
        rig.publish(40, "order").await;
        let member = member.unwrap_or_else(|| rig.start());
        rig.until(EFFECTS, so_far + 40).await;
        member.stop().await;
        let added = format!("select count(*) from posthaste.inbox where partition >= {before}");
        assert!(rig.count(&added).await > 0, "messages came by the partitions added {when}");
    }
    let old = "select count(*) from trial.effects where n <= 16";
    assert_eq!((rig.count(old).await, rig.count(EFFECTS).await), (0, 96), "old, and all");
}

/// A group whose positions expired looks new to Kafka, and is not: its database knows the topic. So what was
/// added to it meanwhile is read whole, and the rest goes on where it was.
#[tokio::test(flavor = "multi_thread")]
async fn f62_a_partition_added_while_the_groups_positions_expired_is_read_whole() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 2, "start_from = \"latest\"").await);
    rig.publish(16, "order").await;
    let member = rig.start();
    rig.until("select count(position) from posthaste.inbox_partitions", 2).await;
    rig.publish(16, "order").await;
    rig.until(EFFECTS, 16).await;
    member.stop().await;
    for partition in [0, 1] {
        kafka.move_group(&rig.topic, (&rig.topic, partition), None).await.expect("the group is empty");
    }
    kafka.grow_topic(&rig.topic, 5).await.expect("partitions are added");
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until(EFFECTS, 56).await;
    member.stop().await;
    let added = "select count(*) from posthaste.inbox where partition >= 2";
    assert!(rig.count(added).await > 0, "messages came by the added partitions");
    let old = "select count(*) from trial.effects where n <= 16";
    assert_eq!((rig.count(old).await, rig.count(EFFECTS).await), (0, 56), "old, and all");
}

/// What retention took before it was read is counted, to the message.
#[tokio::test(flavor = "multi_thread")]
async fn what_retention_took_is_counted_as_lost_and_reading_goes_on() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "").await);
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.finish(member, "before anything was lost").await;
    // What was handled may go: no loss.
    kafka.remove_below(&rig.topic, 0, 40).await.expect("removed");
    let member = rig.start();
    rig.publish(8, "order").await;
    rig.finish(member, "with nothing before the position").await;
    rig.publish(20, "order").await;
    kafka.remove_below(&rig.topic, 0, 60).await.expect("removed");
    let member = rig.start();
    until_position(&rig, 0, 68).await;
    assert_eq!(member.metric("posthaste_consumer_lost_total").await, 12.0, "from 48 to 60");
    assert_eq!(rig.count(EFFECTS).await, 56);
    member.stop().await;
    rig.check("after a loss").await;
}

/// A place where no log is stops its partition, and no other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_beyond_the_end_stops_that_partition_alone_until_a_seek() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 2, "").await);
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let back = rig.positions().await[&0];
    seek(&rig, 0, 1_000);
    stops(&member, "beyond the end").await;
    rig.publish(40, "order").await;
    let lying = kafka.dump(&rig.topic).await.expect("read");
    let elsewhere = lying.iter().filter(|record| record.partition == 1).count() as i64;
    rig.until("select count(*) from posthaste.inbox where partition = 1", elsewhere).await;
    let status = rig.cli(&["consumers", "status", "billing"]).ok();
    assert!(status.contains("stopped") && status.contains("beyond the end"), "{status}");
    assert_eq!(rig.positions().await[&0], 1_000, "nobody moves it but an operator");
    seek(&rig, 0, back);
    rig.until_settled().await;
    member.page("/readyz", "it goes on", |status, _| status == 200).await;
    rig.finish(member, "after a seek there and back").await;
}

/// F6: a topic of the same name, with other messages: fewer than were handled, and more.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_topic_that_was_made_again_is_another_log() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "").await);
    rig.publish(40, "order").await;
    let member = rig.start();
    rig.finish(member, "at first").await;
    for (count, why) in [(8, "beyond the end"), (60, "is not the one that was handled")] {
        let before = rig.count(EFFECTS).await;
        kafka.delete_topic(&rig.topic).await.expect("deleted");
        kafka.create_topic(&rig.topic, 1, 1, &[]).await.expect("made again");
        rig.publish(count, "order").await;
        let member = rig.start();
        stops(&member, why).await;
        assert_eq!(rig.count(EFFECTS).await, before, "nothing is read or skipped");
        seek(&rig, 0, 0);
        rig.until(EFFECTS, before + i64::from(count)).await;
        rig.finish(member, why).await;
    }
}

/// F31, F6: a broker that comes back is the same one. Another one behind its name is not.
#[tokio::test(flavor = "multi_thread")]
async fn f31_a_restarted_broker_goes_on_and_f6_another_cluster_stops() {
    let shared = require_service!(shared().await);
    let own = require_service!(Kafka::start(&KafkaOptions::default()).await);
    let own = Arc::new(RwLock::new(own));
    let mut rig = require_service!(Rig::set_on_own_kafka(Arc::clone(&own), "batch_max = 8").await);
    rig.publish(200, "slow").await;
    let member = rig.start();
    rig.until(EFFECTS, 20).await;
    own.write().await.stop().await.expect("stopped");
    own.write().await.start_again().await.expect("started");
    rig.publish(40, "order").await;
    rig.finish(member, "after a restart of the broker").await;
    rig.move_to(shared).await;
    rig.publish(40, "order").await;
    let member = rig.start();
    stops(&member, "belongs to the log").await;
    assert_eq!(rig.count(EFFECTS).await, 240, "nothing is read or skipped");
    seek(&rig, 0, 0);
    rig.finish(member, "on another cluster").await;
    assert_eq!(rig.count(EFFECTS).await, 280);
}

/// What is no message leaves no lag, and no doubt about the log: aborted records and markers at the end,
/// compaction just before the position.
#[tokio::test(flavor = "multi_thread")]
async fn aborted_and_compacted_records_before_the_position_are_no_other_log() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "").await);
    rig.publish(8, "order").await;
    let member = rig.start();
    rig.until_settled().await;
    let aborted =
        ForeignRecord { key: Some(b"k1".to_vec()), value: Some(b"{}".to_vec()), ..ForeignRecord::default() };
    kafka.send(&rig.topic, &vec![aborted; 3], Some(TransactionEnd::Abort)).await.expect("sent");
    // Three records and the marker.
    until_position(&rig, 0, 12).await;
    eventually("no lag", WAIT, || async {
        (member.metric("posthaste_consumer_lag_messages").await == 0.0).then_some(())
    })
    .await;
    member.stop().await;
    let member = rig.start();
    rig.publish(8, "order").await;
    until_position(&rig, 0, 20).await;
    assert_eq!(member.metric("posthaste_consumer_foreign_positions_total").await, 0.0);
    member.stop().await;
    let settings = ["cleanup.policy=compact", "segment.ms=100", "min.cleanable.dirty.ratio=0.0"];
    kafka.configure_topic(&rig.topic, &settings).await.expect("it compacts");
    eventually("the record before the position is gone", WAIT, || async {
        // A new segment each: the last one is never compacted.
        rig.publish(8, "order").await;
        let lying = kafka.dump(&rig.topic).await.expect("read");
        lying.iter().all(|record| record.offset != 19).then_some(())
    })
    .await;
    let left: Vec<i64> =
        kafka.dump(&rig.topic).await.expect("read").iter().map(|record| record.offset).collect();
    let left = left.iter().filter(|offset| **offset >= 20).count() as i64;
    let member = rig.start();
    rig.until(EFFECTS, 16 + left).await;
    assert_eq!(member.metric("posthaste_consumer_lost_total").await, 0.0, "gaps are no loss");
    member.stop().await;
    rig.check_but_order("with gaps in the log").await;
}

/// F6: the log loses its end under a member that has messages of it in hand.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_log_that_loses_its_end_under_a_member_stops_it() {
    let kafka = require_service!(shared().await);
    let rig = require_service!(Rig::set_on_kafka(kafka, 1, "batch_max = 1").await);
    publish_blocked(&rig).await;
    let member = rig.start();
    rig.until(WAITS, 1).await;
    // What is of other keys than the one that waits is done, and the position is not behind it.
    rig.until(EFFECTS, 15).await;
    kafka.delete_topic(&rig.topic).await.expect("deleted");
    kafka.create_topic(&rig.topic, 1, 1, &[]).await.expect("made again");
    rig.publish(3, "order").await;
    // What is in hand is handled first, and it waits for a lock.
    unlock(&rig).await;
    stops(&member, "beyond the end").await;
    seek(&rig, 0, 0);
    rig.until("select count(*) from trial.effects where n > 17", 3).await;
    member.stop().await;
    rig.check_but_order("on the new log").await;
}
