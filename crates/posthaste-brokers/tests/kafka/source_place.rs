//! Where a source begins in a partition of which its group has no position: while nobody leads the partition,
//! and what becomes of a place that the source declared itself.

use super::source_own::{Reader, alone, plain, texts, values};
use super::*;
use posthaste::source::{Change, PartitionView, Source as _, Standing, StartFrom};
use posthaste_brokers::GroupMember;
use posthaste_testkit::require_service;
use std::collections::BTreeSet;

const TOPIC: &str = "spread";

/// Takes and settles what comes, until so many different ones came.
async fn until_seen(members: &mut [Reader], seen: &mut BTreeSet<String>, count: usize) {
    let end = Instant::now() + DEADLINE;
    while seen.len() < count {
        assert!(Instant::now() < end, "{} of {count}", seen.len());
        for member in &mut *members {
            let taken = member.next().await;
            assert_eq!(member.ack(&taken).await, Ok(vec![Standing::Settled; taken.len()]));
            seen.extend(values(&taken));
        }
    }
}

/// F30: a partition without a leader waits alone. The others are read, whether the group has positions or
/// not, and members come and get their part. When it is led again, it is read too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f30_a_partition_without_a_leader_keeps_neither_the_others_nor_the_group_waiting() {
    let mut kafka = require_service!(Kafka::start(&KafkaOptions::default().nodes(3).first_controls()).await);
    kafka.create_topic(TOPIC, 3, 1, &["min.insync.replicas=1"]).await.expect("a topic");
    let named = |group: &str, member: &str| GroupMember {
        member: Some(member.to_owned()),
        handover_wait: Duration::from_secs(2),
        ..GroupMember::new(group, [TOPIC])
    };
    kafka.send(TOPIC, &plain(0..30), None).await.expect("sent");
    let mut before = Reader::join(&config(&kafka), &named("old", "before"));
    assert_eq!(before.consume(30).await.len(), 30);
    before.source.drain(DEADLINE).await.expect("drained");
    kafka.send(TOPIC, &plain(30..60), None).await.expect("sent");
    let partitions = kafka.partitions(TOPIC).await.expect("partitions");
    let gone =
        partitions.iter().find(|partition| partition.leader == Some(3)).expect("one on each node").number;
    let there: Vec<_> =
        kafka.dump(TOPIC).await.expect("read").into_iter().filter(|r| r.partition != gone).collect();
    let later = |record: &&KafkaRecord| {
        let text = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned();
        text.parse::<usize>().is_ok_and(|n| n >= 30)
    };
    let (all, new) = (there.len(), there.iter().filter(later).count());
    assert!(new > 0 && all < 60, "{new} of {all}");
    kafka.node_mut(3).kill9().await.expect("killed");
    until(async || {
        let partitions = kafka.partitions(TOPIC).await.expect("partitions");
        partitions.iter().any(|partition| partition.leader.is_none())
    })
    .await;

    let mut old = [Reader::join(&config(&kafka), &named("old", "after"))];
    let mut seen_by_old = BTreeSet::new();
    until_seen(&mut old, &mut seen_by_old, new).await;
    let mut young = vec![Reader::join(&config(&kafka), &named("young", "one"))];
    let mut seen = BTreeSet::new();
    until_seen(&mut young, &mut seen, all).await;
    // Nobody waits for the group either: it divides what it has.
    young.push(Reader::join(&config(&kafka), &named("young", "two")));
    until(async || {
        for member in &mut young {
            assert_eq!(member.next().await, []);
        }
        let members = kafka.members("young").await.expect("an answer");
        members.len() == 2 && members.values().all(|partitions| *partitions > 0)
    })
    .await;

    kafka.node_mut(3).start_again().await.expect("started");
    until_seen(&mut young, &mut seen, 60).await;
    until_seen(&mut old, &mut seen_by_old, 30).await;
    assert_eq!(
        (seen, seen_by_old),
        (texts(0..60).into_iter().collect(), texts(30..60).into_iter().collect())
    );
}

/// F62: where a source began by itself is kept, and is not taken for a place where the group has been: by
/// this member and by the next one. Once something is settled there, it is the group's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f62_a_declared_place_is_told_from_a_position_until_something_is_settled() {
    let kafka = require_service!(shared().await);
    let topic = topic(kafka).await;
    kafka.send(&topic, &plain(0..3), None).await.expect("sent");
    let latest = GroupMember { start_from: StartFrom::Latest, ..alone(&topic) };
    let place = |views: &[PartitionView]| (views[0].committed, views[0].declared);
    let assigned = |change: &Change| matches!(change, Change::Assigned { .. });
    let mut first = Reader::join(&config(kafka), &latest);
    first.hears(assigned).await;
    assert_eq!(place(&first.view().await), (Some(3), true));
    first.source.freeze();
    let mut second = Reader::join(&config(kafka), &latest);
    second.hears(assigned).await;
    assert_eq!(place(&second.view().await), (Some(3), true), "nothing was settled by the first one");
    kafka.send(&topic, &plain(3..4), None).await.expect("sent");
    assert_eq!(second.consume(1).await, ["3"]);
    assert_eq!(place(&second.view().await), (Some(4), false));
    second.source.drain(DEADLINE).await.expect("drained");
    let mut third = Reader::join(&config(kafka), &latest);
    third.hears(assigned).await;
    assert_eq!(place(&third.view().await), (Some(4), false));
}
