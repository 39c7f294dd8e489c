//! What one message's trouble costs the others.

use crate::ground::{Ground, NAME, TOPIC, TroubledStore, received, until};
use bytes::Bytes;
use posthaste::consumer::{ConsumerPlan, ConsumerSettings};
use posthaste::source::{Change, Partition, Received, StartFrom};
use posthaste_testkit::broker::{BrokerKind, MemoryBroker};
use posthaste_testkit::inbox::Tables;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::Instant;

/// So long the others may take, while trouble of one kind or another lasts for ever.
const SOON: Duration = Duration::from_secs(120);

/// Messages on keys of their own.
fn publish_others(ground: &Ground, count: usize) {
    (0..count).for_each(|n| ground.broker.publish(TOPIC, received(&format!("m{n}"), &format!("other{n}"))));
}

async fn pass(ground: &Ground, messages: usize) {
    pass_within(ground, messages, SOON).await;
}

async fn pass_within(ground: &Ground, messages: usize, within: Duration) {
    let began = Instant::now();
    until("the others", || ground.done() == messages).await;
    assert!(began.elapsed() < within, "after {:?}", began.elapsed());
}

/// F30: more messages wait for somebody's row than there are transactions, each for as long as a handler may
/// take. The others have the rest of the transactions, also where there is only one.
#[tokio::test(start_paused = true)]
async fn f30_messages_in_front_of_a_lock_leave_transactions_to_the_others() {
    for transactions_max in [1, 4] {
        let mut ground = Ground::new(2);
        ground.settings = ConsumerSettings { transactions_max, ..ConsumerSettings::default() };
        let store = Arc::new(ground.store());
        let source = Arc::new(ground.source("a", StartFrom::Earliest));
        let consumer = ground.start(source, store);
        ground.publish("locked", 12);
        let locked = || consumer.health().in_hand == 12;
        until("those that meet the lock", locked).await;
        tokio::time::sleep(Duration::from_secs(300)).await; // pace: each has met it alone
        publish_others(&ground, 50);
        pass(&ground, 50).await;
    }
}

/// F30: a handler asks another server, which is away. That is this message's trouble: the database works, and
/// it runs with others beside it.
#[tokio::test(start_paused = true)]
async fn f30_an_outage_of_another_server_stops_nobody_else() {
    let ground = Ground::new(2);
    let consumer = ground.start(Arc::new(ground.source("a", StartFrom::Earliest)), Arc::new(ground.store()));
    ground.publish("elsewhere", 20);
    publish_others(&ground, 200);
    pass_within(&ground, 200, Duration::from_secs(2)).await;
    assert!(!consumer.health().why.contains("database"), "{:?}", consumer.health());
    until("the end of the others", || ground.database.tables().letters_of(NAME).len() == 20).await;
    let tables = ground.database.tables();
    assert!(tables.letters_of(NAME).iter().all(|letter| letter.row.work.attempts == 4));
}

/// F30: large messages fill the window, and what they need is away for hours. Partitions that have nothing in
/// hand are read, a message at a time.
#[tokio::test(start_paused = true)]
async fn f30_large_messages_that_wait_leave_room_for_others() {
    let mut ground = Ground::new(4);
    ground.settings = ConsumerSettings { in_hand_bytes_max: 10_000, ..ConsumerSettings::default() };
    let store = Arc::new(ground.store());
    let _consumer = ground.start(Arc::new(ground.source("a", StartFrom::Earliest)), store);
    let place = |key: &str| {
        let probe = Ground::new(4);
        probe.broker.publish(TOPIC, received("x", key));
        probe.broker.entries(TOPIC).iter().position(|entries| !entries.is_empty())
    };
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let of = |number| keys.iter().find(|key| place(key) == Some(number)).expect("a key");
    for number in 0..3 {
        let payload = Some(Bytes::from(vec![b'x'; 20_000]));
        let large = Received { payload, ..received(&format!("away{number}"), of(number)) };
        ground.broker.publish(TOPIC, large);
    }
    tokio::time::sleep(Duration::from_secs(30)).await; // pace: they wait for what they need
    (0..20).for_each(|n| ground.broker.publish(TOPIC, received(&format!("m{n}"), of(3))));
    pass(&ground, 20).await;
}

/// The broker's position is a courtesy: while it is not written, messages are handled as fast as ever.
#[tokio::test(start_paused = true)]
async fn a_broker_that_writes_no_positions_holds_up_nobody() {
    let mut ground = Ground::new(1);
    ground.settings = ConsumerSettings { in_hand_max: 64, ..ConsumerSettings::default() };
    let source = Arc::new(ground.source("a", StartFrom::Earliest));
    source.unwritten_max.store(64, SeqCst);
    let _consumer = ground.start(source, Arc::new(ground.store()));
    ground.publish("m", 2_000);
    pass(&ground, 2_000).await;
}

fn is_clean(tables: &Tables, partition: &Partition) -> bool {
    let row = &tables.partitions[&(NAME.to_owned(), partition.clone())];
    row.clean && row.in_hand.is_none()
}

/// F21: a right that is missing is no message's fault. The consumer ends, gives everything back, and nobody
/// counts a death, however often it is started again.
#[tokio::test(start_paused = true)]
async fn f21_a_consumer_that_cannot_go_on_is_no_death() {
    let ground = Ground::new(1);
    ground.publish("m", 3);
    for round in 0..8 {
        let store = TroubledStore { is_broken: AtomicBool::new(true), ..ground.store() };
        let source = Arc::new(ground.source(&format!("member{round}"), StartFrom::Earliest));
        let plan = ConsumerPlan::new(NAME, source, Arc::new(store));
        let mut consumer = ground.start_plan(ConsumerPlan { member: format!("m{round}").into(), ..plan });
        assert!(consumer.failed().await.contains("permission denied"));
        assert!(is_clean(&ground.database.tables(), &Partition::new(TOPIC, 0)), "round {round}");
    }
    let source = Arc::new(ground.source("last", StartFrom::Earliest));
    let _consumer = ground.start(source, Arc::new(ground.store()));
    until("the messages", || ground.done() == 3).await;
    assert!(ground.database.tables().letters_of(NAME).is_empty());
}

/// A queue says what it lost by its tickets, and others of these numbers may still come: a loss that is told
/// acknowledges nothing.
#[tokio::test(start_paused = true)]
async fn g2_a_loss_of_a_queue_passes_over_nothing_else() {
    let mut ground = Ground::new(1);
    ground.broker = MemoryBroker::new(BrokerKind::Queue, 100_000);
    ground.broker.declare(TOPIC, 1);
    ground.publish("m", 10);
    let source = Arc::new(ground.source("a", StartFrom::Earliest));
    let lost = |from, until| Change::Lost { partition: Partition::new(TOPIC, 0), from, until };
    let consumer = ground.start(Arc::clone(&source), Arc::new(ground.store()));
    until("the messages", || ground.done() == 10).await;
    *source.tells.lock().expect("no panic") = vec![lost(5, 1_000)];
    until("what is told", || source.tells.lock().expect("no panic").is_empty()).await;
    ground.publish("n", 10);
    until("what came later", || ground.done() == 20).await;
    assert!(consumer.health().ready, "{:?}", consumer.health());
}
