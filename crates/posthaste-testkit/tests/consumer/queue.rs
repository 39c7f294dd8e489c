//! Brokers without positions: acknowledgements follow the commit, and the database keeps no place for them.

use crate::ground::{Act, Ground, NAME, STALL, TOPIC, received};
use posthaste::consumer::{Identity, IdentityFrom};
use posthaste::relay::DrainOutcome;
use posthaste::source::{Limit, Source, StartFrom};
use posthaste_testkit::broker::{BrokerKind, MemoryBroker};
use std::time::Duration;

/// What the queue would give to the next member.
async fn rest(ground: &Ground) -> usize {
    let next = ground.broker.join(NAME, TOPIC, "next", StartFrom::Earliest, STALL);
    let limit = Limit { events: 1_000, bytes: 1 << 20 };
    let mut count = 0;
    for _ in 0..3 {
        count += next.next(limit, Duration::from_secs(1)).await.expect("an answer").deliveries.len();
    }
    count
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

#[tokio::test(start_paused = true)]
async fn g5_a_queue_is_handled_once_and_acknowledged_after_the_commit() {
    let ground = Ground::of(BrokerKind::Queue, 2);
    let ids: Vec<String> = (100..300).map(|n| format!("m{n}")).collect();
    ids.iter().enumerate().for_each(|(n, id)| ground.publish(id, Some(&format!("k{}", n % 7))));
    ground.script.set("m150", Act::Fail(4));
    let consumer = ground.start();
    ground.until_done(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(consumer.drain().await, DrainOutcome::Clean);
    assert_eq!(sorted(ground.done()), ids);
    let tables = ground.database.tables();
    assert!(tables.partitions.values().all(|row| row.position.is_none() && row.clean), "no place is kept");
    drop(tables);
    assert_eq!(rest(&ground).await, 0, "everything was acknowledged");
}

#[tokio::test(start_paused = true)]
async fn g5_nothing_of_a_queue_is_acknowledged_before_its_commit() {
    let ground = Ground::of(BrokerKind::Queue, 1);
    ground.script.set("stuck", Act::Hang);
    ["first", "stuck", "behind"].iter().for_each(|id| ground.publish(id, Some("k")));
    let _consumer = ground.start();
    ground.until_done(&["first"]).await;
    ground.broker.kill(NAME, "member-1");
    assert!((2..=3).contains(&rest(&ground).await), "what has no mark comes again");
}

#[tokio::test(start_paused = true)]
async fn g3_the_next_member_of_a_queue_goes_on_where_the_dead_one_was() {
    let ground = Ground::of(BrokerKind::Queue, 1);
    let ids: Vec<String> = (100..160).map(|n| format!("m{n}")).collect();
    ids.iter().for_each(|id| ground.publish(id, Some("k")));
    ground.script.set("m130", Act::Hang);
    let _dead = ground.start();
    ground.until_done(&["m120"]).await;
    ground.broker.kill(NAME, "member-1");
    ground.script.clear();
    let consumer = ground.start();
    ground.until_done(&["m159"]).await;
    assert_eq!(ground.done(), ids, "once, and in order");
    assert_eq!(consumer.drain().await, DrainOutcome::Clean);
}

#[tokio::test(start_paused = true)]
async fn f20_a_database_that_went_back_gets_again_what_the_queue_still_has() {
    let ground = Ground::of(BrokerKind::Queue, 1);
    ["a", "b", "c"].iter().for_each(|id| ground.publish(id, Some("k")));
    ground.script.set("b", Act::Fail(3));
    let consumer = ground.start();
    ground.until_done(&["a"]).await;
    ground.database.restart();
    ground.until_done(&["b", "c"]).await;
    assert_eq!(ground.done(), ["a", "b", "c"]);
    assert_eq!(consumer.drain().await, DrainOutcome::Clean);
    assert_eq!(rest(&ground).await, 0);
}

#[tokio::test(start_paused = true)]
async fn f72_messages_of_a_queue_without_an_id_stop_the_consumer_and_are_not_buried() {
    let mut ground = Ground::of(BrokerKind::Queue, 1);
    (0..20).for_each(|n| {
        let payload = Some(format!("{n}").into_bytes().into());
        ground.broker.publish(TOPIC, posthaste::source::Received { payload, ..received(None, Some("k")) });
    });
    let mut consumer = ground.start();
    let why = consumer.failed().await;
    assert!(why.contains("no identity"), "{why}");
    assert_eq!((ground.done().len(), ground.dead().len()), (0, 0));
    let from = vec![IdentityFrom::Id, IdentityFrom::Position, IdentityFrom::Sha256];
    ground.identity = Identity { from, ..Identity::default() };
    ground.broker.kill(NAME, "member-1");
    let _consumer = ground.start();
    ground.until("all twenty", |ground| ground.done().len() == 20).await;
}

#[tokio::test(start_paused = true)]
async fn f30_one_message_that_waits_does_not_stop_a_queue_that_hands_out_little() {
    let mut ground = Ground::of(BrokerKind::Queue, 1);
    ground.broker = MemoryBroker::new(BrokerKind::Queue, 10);
    ground.broker.declare(TOPIC, 1);
    ground.script.set("bad", Act::Fail(4));
    ground.publish("bad", Some("bad"));
    let ids: Vec<String> = (100..200).map(|n| format!("m{n}")).collect();
    ids.iter().for_each(|id| ground.publish(id, Some(id)));
    let _consumer = ground.start();
    ground.until_done(&["bad"]).await;
    assert_eq!(ground.done().last().map(String::as_str), Some("bad"), "all others went before it");
    assert_eq!(ground.done().len(), 101);
}
