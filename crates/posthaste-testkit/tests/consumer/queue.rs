//! Brokers without positions: acknowledgements follow the commit, and the database keeps no place for them.

use crate::ground::{Act, Ground, NAME, STALL, TOPIC, received};
use posthaste::consumer::policy::ConsumerRetry;
use posthaste::consumer::store::{InboxStore, SavedPosition};
use posthaste::consumer::{Disposition, Filter, Identity, IdentityFrom};
use posthaste::relay::DrainOutcome;
use posthaste::retry::RetryPolicy;
use posthaste::source::{Limit, Partition, Source, StartFrom};
use posthaste_testkit::broker::{BrokerKind, MemoryBroker};
use std::sync::Arc;
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
async fn f65_a_member_that_leaves_a_queue_takes_nothing_from_the_others() {
    let ground = Ground::of(BrokerKind::Queue, 1);
    ground.script.set("bad", Act::Fail(u32::MAX));
    ground.publish("bad", None);
    let _consumer = ground.start();
    ground.until("an attempt", |ground| !ground.script.runs_of("bad").is_empty()).await;
    let other = ground.database.inbox(NAME, Filter::default(), Arc::clone(&ground.script) as _);
    let queue = Partition::new(TOPIC, 0);
    let taking = other.take(std::slice::from_ref(&queue), "other").await.expect("taken");
    let given_back = SavedPosition {
        partition: queue,
        position: None,
        position_time: None,
        log_id: None,
        in_hand: None,
        seeks: 0,
        release: true,
    };
    other.save("other", taking.witness, &[given_back], None).await.expect("given back");
    ground.until("the letter", |ground| !ground.dead().is_empty()).await;
    assert_eq!(ground.script.runs_of("bad").len(), 4, "its attempts did not begin anew");
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

/// F21: a message that was deferred is not the broker's any more, so nobody counts its deliveries. It kills
/// each process that runs it, and is given up in the end.
#[tokio::test(start_paused = true)]
async fn f21_a_deferred_message_of_a_queue_that_kills_its_process_is_given_up() {
    let mut ground = Ground::of(BrokerKind::Queue, 1);
    let then = RetryPolicy { max_attempts: 4, initial_ms: 1_000, max_ms: 1_000, ..RetryPolicy::default() };
    ground.settings.retry = ConsumerRetry { delays_ms: vec![], then: Some(then) };
    ground.script.set("killer", Act::Fail(1));
    ground.publish("killer", Some("k"));
    let first = ground.start();
    ground.until("its copy", |ground| ground.database.tables().deferred.len() == 1).await;
    ground.script.set("killer", Act::Hang);
    let mut member = Some(first);
    for death in 1..=20 {
        let runs = ground.script.runs_of("killer").len();
        let is_over =
            |ground: &Ground| ground.script.runs_of("killer").len() > runs || !ground.dead().is_empty();
        ground.until("the next run, or the end", is_over).await;
        if !ground.dead().is_empty() {
            break;
        }
        drop(member.take());
        ground.broker.kill(NAME, &format!("member-{death}"));
        member = Some(ground.start());
    }
    assert_eq!(ground.dead(), [("killer".to_owned(), Disposition::Crashed)]);
    ground.publish("m", Some("k"));
    ground.until_done(&["m"]).await;
}

/// What is settled is acknowledged before the usual time, where a broker hands out no more until then. Were
/// it five times a second alone, forty handfuls would take eight seconds.
#[tokio::test(start_paused = true)]
async fn a_queue_that_hands_out_little_is_acknowledged_before_the_usual_time() {
    let mut ground = Ground::of(BrokerKind::Queue, 1);
    ground.broker = MemoryBroker::new(BrokerKind::Queue, 100);
    ground.broker.declare(TOPIC, 2);
    (0..4_000).for_each(|n| ground.publish(&format!("m{n}"), Some(&format!("k{}", n % 50))));
    // One that waits is not acknowledged, and what is behind it is.
    ground.script.set("m7", Act::Fail(3));
    let began = tokio::time::Instant::now();
    let _consumer = ground.start();
    // All of its key are behind it.
    ground.until("the others", |ground| ground.done().len() >= 3_920).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    ground.until("all", |ground| ground.done().len() == 4_000).await;
}

/// While there is little to do, as much is acknowledged at once as comes in the usual time.
#[tokio::test(start_paused = true)]
async fn a_queue_that_is_nearly_idle_is_acknowledged_at_the_usual_time() {
    let ground = Ground::of(BrokerKind::Queue, 1);
    let _consumer = ground.start();
    for n in 0..100 {
        ground.publish(&format!("m{n}"), Some("k"));
        tokio::time::sleep(Duration::from_millis(20)).await; // pace: fifty a second
    }
    ground.until("all", |ground| ground.done().len() == 100).await;
    let acks = ground.broker.acks();
    assert!((5..=20).contains(&acks), "{acks} in two seconds");
}
