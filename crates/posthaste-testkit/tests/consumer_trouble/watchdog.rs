//! A source that says nothing is built anew, and nothing else is taken for one.

use crate::ground::{Ground, NAME, Notes, TOPIC, TroubledSource, received, until};
use posthaste::consumer::policy::ConsumerRetry;
use posthaste::consumer::{ConsumerEnd, ConsumerHandle, ConsumerPlan, Order};
use posthaste::source::StartFrom;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

fn begin(ground: &Ground) -> (Arc<TroubledSource>, ConsumerHandle) {
    let source = Arc::new(ground.source("a", StartFrom::Earliest));
    let consumer = ground.start(Arc::clone(&source), Arc::new(ground.store()));
    (source, consumer)
}

/// From now on it delivers nothing.
async fn silence(source: &TroubledSource) {
    source.is_silent.store(true, SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await; // pace: a call that is under way ends
}

/// Looks for so long whether it is well, each second.
async fn stays_well(consumer: &ConsumerHandle, long: Duration) {
    let until = Instant::now() + long;
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_secs(1)).await; // pace: virtual time
        let health = consumer.health();
        assert!(health.ready, "{health:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn f67_a_source_that_fell_silent_is_told_and_built_anew_at_most_every_five_minutes() {
    let ground = Ground::new(2);
    for round in 1..3 {
        let began = Instant::now();
        let (source, mut consumer) = begin(&ground);
        // What the source before this one did not deliver comes now.
        let before = 20 * (round - 1);
        until("what is there", || ground.done() == before).await;
        silence(&source).await;
        ground.publish(&format!("round{round}-"), 20);
        let silent = Instant::now();
        until("the alarm", || consumer.health().why.contains("nothing was settled for a minute")).await;
        assert!(
            (MINUTE..MINUTE + Duration::from_secs(5)).contains(&silent.elapsed()),
            "{:?}",
            silent.elapsed()
        );
        assert!(!consumer.health().ready);
        let end = consumer.ended().await;
        let ConsumerEnd::Stalled(why) = &end else { panic!("{end:?}") };
        assert!(why.contains(NAME) && why.contains("built anew"), "{why}");
        let age = began.elapsed();
        assert!((5 * MINUTE..6 * MINUTE).contains(&age), "a source has its time: {age:?}");
        let tables = ground.database.tables();
        assert!(tables.partitions.values().all(|row| row.clean), "everything was given back");
    }
    let (_source, _consumer) = begin(&ground);
    until("everything", || ground.done() == 40).await;
}

#[tokio::test(start_paused = true)]
async fn f101_a_handler_that_runs_for_two_minutes_is_no_stall() {
    let mut ground = Ground::new(1);
    ground.notes = Arc::new(Notes { takes: 2 * MINUTE, ..Notes::default() });
    (ground.settings.handler_timeout_ms, ground.settings.batch_max) = (600_000, 1);
    (0..5).for_each(|n| ground.broker.publish(TOPIC, received(&format!("m{n}"), "a")));
    let (_source, consumer) = begin(&ground);
    stays_well(&consumer, 9 * MINUTE).await;
    assert!((3..5).contains(&ground.done()), "they run one after the other: {}", ground.done());
}

/// A deferred message's handler is one too.
#[tokio::test(start_paused = true)]
async fn f101_a_deferred_message_that_runs_for_two_minutes_is_no_stall() {
    let mut ground = Ground::new(1);
    ground.settings.retry = ConsumerRetry { delays_ms: vec![60_000; 9], then: None };
    ground.settings.handler_timeout_ms = 600_000;
    ground.notes = Arc::new(Notes { takes: 2 * MINUTE, ..Notes::default() });
    ground.broker.publish(TOPIC, received("bad", "a"));
    let (source, consumer) = begin(&ground);
    until("its copy", || ground.database.tables().deferred.len() == 1).await;
    let ran = || ground.notes.runs.lock().expect("no panic").len();
    let before = ran();
    until("its second run", || ran() > before).await;
    silence(&source).await;
    ground.publish("m", 3);
    stays_well(&consumer, 2 * MINUTE - Duration::from_secs(10)).await;
    assert_eq!(ran(), before + 1, "it is the same run");
}

#[tokio::test(start_paused = true)]
async fn f101_a_retry_that_is_due_in_an_hour_is_no_stall() {
    let mut ground = Ground::new(1);
    ground.settings.retry = ConsumerRetry { delays_ms: vec![3_600_000], then: None };
    ground.broker.publish(TOPIC, received("bad", "a"));
    ground.publish("m", 5);
    let source = Arc::new(ground.source("a", StartFrom::Earliest));
    let plan = ConsumerPlan::new(NAME, source, Arc::new(ground.store()));
    let consumer = ground.start_plan(ConsumerPlan { order: Order::Partition, ..plan });
    stays_well(&consumer, 10 * MINUTE).await;
    assert_eq!(ground.done(), 0, "the partition waits for its head");
}

/// Nothing to do is not the same as nothing done: a message after an hour of idleness has a minute.
#[tokio::test(start_paused = true)]
async fn f67_a_message_after_an_idle_hour_is_no_stall() {
    let ground = Ground::new(1);
    let (source, consumer) = begin(&ground);
    stays_well(&consumer, 60 * MINUTE).await;
    silence(&source).await;
    ground.publish("m", 1);
    stays_well(&consumer, MINUTE - Duration::from_secs(10)).await;
    source.is_silent.store(false, SeqCst);
    until("the message", || ground.done() == 1).await;
    stays_well(&consumer, 10 * MINUTE).await;
}
