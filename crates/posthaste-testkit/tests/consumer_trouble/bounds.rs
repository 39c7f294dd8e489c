//! What a consumer is bound to: settings, also those that change while it runs, and what an operator sets.

use crate::ground::{Ground, NAME, Notes, TOPIC, TroubledStore, received, until};
use bytes::Bytes;
use posthaste::consumer::store::ConsumerControls;
use posthaste::consumer::{ConsumerHandle, ConsumerRetry, ConsumerSettings, OnDead};
use posthaste::source::{Received, StartFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::Instant;

fn begin(ground: &Ground) -> (Arc<TroubledStore>, ConsumerHandle) {
    begin_with(ground, ground.store())
}

fn begin_with(ground: &Ground, store: TroubledStore) -> (Arc<TroubledStore>, ConsumerHandle) {
    let store = Arc::new(store);
    let source = Arc::new(ground.source("a", StartFrom::Earliest));
    (Arc::clone(&store), ground.start(source, store))
}

/// The most messages and the most bytes of one transaction.
fn largest(store: &TroubledStore) -> (usize, usize) {
    let batches = store.batches.lock().expect("no panic");
    batches.iter().fold((0, 0), |most, batch| (most.0.max(batch.0), most.1.max(batch.1)))
}

/// Attempts of a dead letter, and whether it holds its key.
fn letter(ground: &Ground, id: &str) -> Option<(u32, bool)> {
    let tables = ground.database.tables();
    let found = tables.letters_of(NAME).into_iter().find(|letter| *letter.row.work.id == *id).cloned();
    found.map(|letter| (letter.row.work.attempts, letter.burial.holds_key))
}

fn is_done(ground: &Ground, id: &str) -> bool {
    ground.database.tables().effects.iter().any(|effect| effect.id == id)
}

#[tokio::test(start_paused = true)]
async fn settings_that_change_apply_to_a_running_consumer() {
    let mut ground = Ground::new(1);
    ground.notes = Arc::new(Notes { takes: Duration::from_millis(10), ..Notes::default() });
    ground.settings = ConsumerSettings {
        batch_max: 1,
        transactions_max: 1,
        retry: ConsumerRetry { delays_ms: vec![1_000], then: None },
        ..ConsumerSettings::default()
    };
    let (store, consumer) = begin(&ground);
    ground.publish("one-", 40);
    until("the messages", || ground.done() == 40).await;
    assert_eq!((largest(&store).0, store.most_open.load(SeqCst)), (1, 1));

    let wide = ConsumerSettings { batch_max: 4, transactions_max: 3, ..ground.settings.clone() };
    ground.tune(&wide);
    ground.publish("many-", 40);
    until("more of them", || ground.done() == 80).await;
    assert_eq!((largest(&store).0, store.most_open.load(SeqCst)), (4, 3));

    let send = |id: &str, key: &str| ground.broker.publish(TOPIC, received(id, key));
    send("bad-1", "a");
    send("after-1", "a");
    until("its death", || letter(&ground, "bad-1") == Some((2, false))).await;
    until("the next of its key", || is_done(&ground, "after-1")).await;
    ground.tune(&ConsumerSettings {
        retry: ConsumerRetry { delays_ms: vec![], then: None },
        on_dead: OnDead::Hold,
        ..wide
    });
    send("bad-2", "b");
    send("after-2", "b");
    until("its death at once", || letter(&ground, "bad-2") == Some((1, true))).await;
    until("what waits behind it", || ground.database.tables().deferred.len() == 1).await;
    assert!(!is_done(&ground, "after-2"), "the letter holds its key");
    assert!(consumer.health().ready, "{:?}", consumer.health());
}

fn large(id: &str, key: &str, bytes: usize) -> Received {
    Received { payload: Some(Bytes::from(vec![b'x'; bytes])), ..received(id, key) }
}

#[tokio::test(start_paused = true)]
async fn g7_the_window_is_bounded_in_bytes() {
    let mut ground = Ground::new(1);
    ground.settings =
        ConsumerSettings { in_hand_bytes_max: 10_000, transactions_max: 1, ..Default::default() };
    let send =
        |n: usize, bytes| ground.broker.publish(TOPIC, large(&format!("m{n}"), &format!("k{n}"), bytes));
    (0..40).for_each(|n| send(n, 1_000));
    // Larger than the whole window: it comes alone.
    send(40, 50_000);
    (41..60).for_each(|n| send(n, 1_000));
    let gated = TroubledStore { is_gated: AtomicBool::new(true), ..ground.store() };
    let (store, consumer) = begin_with(&ground, gated);
    until("a full window", || consumer.health().in_hand > 8).await;
    tokio::time::sleep(Duration::from_secs(30)).await; // pace: nothing more comes
    assert!((9..=10).contains(&consumer.health().in_hand), "{:?}", consumer.health());
    store.gate.notify_one();
    until("everything", || ground.done() == 60).await;
}

#[tokio::test(start_paused = true)]
async fn a_transaction_is_bounded_in_bytes_and_one_message_may_exceed_it_alone() {
    let mut ground = Ground::new(1);
    ground.settings = ConsumerSettings { batch_bytes_max: 3_500, ..ConsumerSettings::default() };
    let payloads = [500, 1_000, 3_000, 5_000, 100, 2_000];
    for n in 0..60 {
        // Some of them are of one key.
        let key = if n % 2 == 0 { "even".to_owned() } else { format!("k{n}") };
        ground.broker.publish(TOPIC, large(&format!("m{n}"), &key, payloads[n % payloads.len()]));
    }
    let (store, _consumer) = begin(&ground);
    until("everything", || ground.done() == 60).await;
    let batches = store.batches.lock().expect("no panic").clone();
    let too_large = batches.iter().filter(|(messages, bytes)| *messages > 1 && *bytes > 3_500).count();
    assert_eq!(too_large, 0, "{batches:?}");
    assert!(batches.iter().any(|(messages, _)| *messages > 1), "{batches:?}");
    assert_eq!(batches.iter().filter(|(messages, bytes)| *messages == 1 && *bytes > 5_000).count(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_rate_bounds_what_is_begun_and_is_no_stall() {
    let ground = Ground::new(2);
    let limit = |rate_limit| {
        let controls = ConsumerControls { paused: false, rate_limit };
        ground.database.alter(|tables| tables.controls.insert(NAME.to_owned(), controls));
    };
    limit(Some(10.0));
    ground.publish("m", 100);
    let began = Instant::now();
    let (_store, consumer) = begin(&ground);
    until("the messages", || ground.done() == 100).await;
    let took = began.elapsed().as_secs_f64();
    assert!((9.0..13.0).contains(&took), "ten a second: {took}");
    let runs: Vec<Instant> = ground.notes.runs.lock().expect("no panic").iter().map(|(_, at)| *at).collect();
    for (n, run) in runs.iter().enumerate() {
        let second =
            runs[n..].iter().take_while(|at| at.duration_since(*run) < Duration::from_secs(1)).count();
        assert!(second <= 11, "{second} within a second");
    }

    // One in an hour: there is lag, and nothing is wrong.
    limit(Some(1.0 / 3_600.0));
    tokio::time::sleep(Duration::from_secs(2)).await; // pace: it is heard of with the next save
    ground.publish("slow", 20);
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_secs(1)).await; // pace: virtual time
        assert!(consumer.health().ready, "{:?}", consumer.health());
    }
    assert!(ground.done() < 103, "{}", ground.done());
    limit(None);
    until("the rest", || ground.done() == 120).await;
}

/// A message that fills the window by itself while others wait for room: it keeps its attempts, and dies.
#[tokio::test(start_paused = true)]
async fn f65_a_message_that_fills_the_window_keeps_its_attempts() {
    let mut ground = Ground::new(4);
    ground.settings = ConsumerSettings { in_hand_bytes_max: 10_000, ..ConsumerSettings::default() };
    ground.broker.publish(TOPIC, large("bad-1", "a", 50_000));
    let (_store, _consumer) = begin(&ground);
    ground.publish("m", 40);
    until("its death", || letter(&ground, "bad-1") == Some((4, false))).await;
    until("the others", || ground.done() == 40).await;
}
