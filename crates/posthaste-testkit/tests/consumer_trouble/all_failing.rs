//! `all_failing = "pause"`: a broken deployment buries next to nothing, poison drains, a success resumes all.

use crate::ground::{Ground, NAME, TOPIC, received, until};
use posthaste::consumer::policy::ConsumerRetry;
use posthaste::consumer::{AllFailing, ConsumerHandle, ConsumerSettings};
use posthaste::retry::RetryPolicy;
use posthaste::source::StartFrom;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn paused() -> ConsumerSettings {
    ConsumerSettings { all_failing: AllFailing::Pause, ..ConsumerSettings::default() }
}

fn begin(ground: &Ground) -> ConsumerHandle {
    ground.start(Arc::new(ground.source("a", StartFrom::Earliest)), Arc::new(ground.store()))
}

fn letters(ground: &Ground) -> usize {
    ground.database.tables().letters_of(NAME).len()
}

/// An hour of a broken deployment, with messages of 200 keys in four partitions, and new ones each minute.
async fn outlast(ground: &Ground, consumer: &ConsumerHandle, retries_ms: u64) {
    ground.publish("m", 200);
    until("a success", || ground.done() == 200).await;
    ground.notes.is_broken.store(true, SeqCst);
    ground.publish("n", 200);
    let all_fail = || consumer.health().why.contains("every message fails");
    until("what it says", all_fail).await;
    let at_first = letters(ground);
    // Those whose retries were over before the half minute was, were spared.
    assert_eq!(at_first, 0, "after retries of {retries_ms} ms");
    for minute in 0..60 {
        ground.broker.publish(TOPIC, received(&format!("o{minute}"), &format!("p{minute}")));
        tokio::time::sleep(MINUTE).await; // pace: a minute of the outage
        let dead = letters(ground);
        assert!(dead <= minute + 7, "{dead} are dead after {minute} minutes"); // the first pauses are short
    }
    assert!(all_fail() && !consumer.health().ready, "{:?}", consumer.health());
    ground.notes.is_broken.store(false, SeqCst);
    let dead = || letters(ground) + ground.done();
    until("the rest", || dead() == 460).await;
    assert!(consumer.health().ready, "{:?}", consumer.health());
}

#[tokio::test(start_paused = true)]
async fn a_broken_deployment_buries_at_most_one_a_minute_and_resumes() {
    let mut ground = Ground::new(4);
    ground.settings = paused();
    let consumer = begin(&ground);
    outlast(&ground, &consumer, 8_000).await;
    assert!(letters(&ground) >= 20, "probes count: {}", letters(&ground));
}

/// The last of the tries are in the database: deferred messages are not given up beside those in hand.
#[tokio::test(start_paused = true)]
async fn deferred_messages_wait_for_the_deployment_too() {
    let mut ground = Ground::new(4);
    let then = RetryPolicy { max_attempts: 4, initial_ms: 2_000, max_ms: 2_000, ..RetryPolicy::default() };
    ground.settings = paused();
    ground.settings.retry = ConsumerRetry { delays_ms: vec![100], then: Some(then) };
    let consumer = begin(&ground);
    outlast(&ground, &consumer, 4_100).await;
}

/// All that is left is deferred: one of them at a time probes.
#[tokio::test(start_paused = true)]
async fn deferred_messages_alone_are_tried_one_at_a_time() {
    let mut ground = Ground::new(4);
    let then = RetryPolicy { max_attempts: 2, initial_ms: 40_000, max_ms: 40_000, ..RetryPolicy::default() };
    ground.settings = paused();
    ground.settings.retry = ConsumerRetry { delays_ms: vec![], then: Some(then) };
    ground.notes.is_broken.store(true, SeqCst);
    let consumer = begin(&ground);
    ground.publish("m", 200);
    until("deferred", || ground.database.tables().deferred.len() > 100).await;
    let mut most = 0;
    for minute in 0..60 {
        let before = letters(&ground);
        tokio::time::sleep(MINUTE).await; // pace: a minute of the outage
        if minute > 8 {
            most = most.max(letters(&ground) - before);
        }
    }
    assert!(most <= 2 && letters(&ground) < 100, "{most} in a minute, {} in all", letters(&ground));
    ground.notes.is_broken.store(false, SeqCst);
    until("the rest", || letters(&ground) + ground.done() == 200).await;
    assert!(consumer.health().ready, "{:?}", consumer.health());
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_poison_in_a_quiet_half_hour_drains() {
    let mut ground = Ground::new(4);
    ground.settings = paused();
    let consumer = begin(&ground);
    ground.publish("m", 10);
    until("a success", || ground.done() == 10).await;
    tokio::time::sleep(30 * MINUTE).await; // pace: nothing happens
    ground.publish("poison", 40);
    tokio::time::sleep(30 * MINUTE).await; // pace: the quiet half hour
    until("the poison's end", || letters(&ground) == 40).await;
    until("no more waiting", || consumer.health().why == "idle").await;
    ground.publish("n", 10);
    until("what comes later", || ground.done() == 20).await;
}

/// One kind of message fails and another does not: that is no broken deployment, and nobody waits.
#[tokio::test(start_paused = true)]
async fn some_that_succeed_show_that_the_others_failures_are_their_own() {
    let mut ground = Ground::new(4);
    ground.settings = paused();
    let consumer = begin(&ground);
    for n in 0..300 {
        ground.broker.publish(TOPIC, received(&format!("bad{n}"), &format!("b{n}")));
        ground.broker.publish(TOPIC, received(&format!("m{n}"), &format!("k{n}")));
        tokio::time::sleep(Duration::from_secs(1)).await; // pace: steady traffic
        assert!(!consumer.health().why.contains("every message"), "{:?}", consumer.health());
    }
    until("the dead and the done", || letters(&ground) == 300 && ground.done() == 300).await;
}

/// Whoever reloads `all_failing = "bury"` waits no longer.
#[tokio::test(start_paused = true)]
async fn a_reload_that_wants_them_buried_buries_them() {
    let mut ground = Ground::new(2);
    ground.settings = paused();
    ground.notes.is_broken.store(true, SeqCst);
    let consumer = begin(&ground);
    ground.publish("m", 100);
    until("what it says", || consumer.health().why.contains("every message fails")).await;
    ground.tune(&ConsumerSettings::default());
    until("their end", || letters(&ground) == 100).await;
    assert!(consumer.health().ready, "{:?}", consumer.health());
}

/// Few messages come, and nobody is left between them: what is known of the deployment is not forgotten.
#[tokio::test(start_paused = true)]
async fn a_trickle_into_a_broken_deployment_is_buried_no_faster() {
    let then = RetryPolicy { max_attempts: 3, initial_ms: 5_000, max_ms: 5_000, ..RetryPolicy::default() };
    let deferring = ConsumerRetry { delays_ms: vec![], then: Some(then) };
    for retry in [ConsumerRetry { delays_ms: vec![500], then: None }, deferring] {
        let mut ground = Ground::new(4);
        ground.settings = ConsumerSettings { retry, ..paused() };
        ground.notes.is_broken.store(true, SeqCst);
        let _consumer = begin(&ground);
        for n in 0..360 {
            ground.broker.publish(TOPIC, received(&format!("m{n}"), &format!("k{n}")));
            tokio::time::sleep(Duration::from_secs(10)).await; // pace: an hour of it
        }
        let dead = letters(&ground);
        assert!(dead <= 19 + 60 + 7, "{dead} in an hour");
        ground.notes.is_broken.store(false, SeqCst);
        until("the rest", || letters(&ground) + ground.done() == 360).await;
    }
}

/// A handler may have a dependency that it calls `handler`: that one is away for those who need it.
#[tokio::test(start_paused = true)]
async fn a_dependency_that_is_called_handler_is_not_all() {
    let mut ground = Ground::new(4);
    ground.settings = paused();
    let consumer = begin(&ground);
    ground.broker.publish(TOPIC, received("own", "k0"));
    until("what it says", || consumer.health().why.starts_with("waiting for handler (its own)")).await;
    ground.publish("m", 200);
    until("the other partitions", || ground.done() >= 100).await;
    assert!(!consumer.health().why.contains("every message"), "{:?}", consumer.health());
    assert_eq!(letters(&ground), 0);
}
