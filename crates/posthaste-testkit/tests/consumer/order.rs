//! What is kept in order: the partition, or nothing.

use crate::ground::{Act, Ground, NAME, TOPIC};
use posthaste::consumer::{Disposition, OnDead, Order};
use posthaste::event::Timestamp;
use posthaste::relay::DrainOutcome;
use posthaste::source::Received;
use std::time::Duration;

/// A partition's messages: one that fails, and others of other keys behind it.
fn publish_behind(ground: &Ground, first: &str) -> Vec<String> {
    ground.publish(first, Some("a"));
    let behind: Vec<String> = (0..40).map(|n| format!("m{n}")).collect();
    behind.iter().enumerate().for_each(|(n, id)| ground.publish(id, Some(&format!("k{}", n % 7))));
    [vec![first.to_owned()], behind].concat()
}

#[tokio::test(start_paused = true)]
async fn g3_in_order_of_the_partition_nothing_behind_a_failing_head_runs_or_is_copied() {
    // Its retries wait in memory, or, longer than that, in the database.
    for (delays_ms, copies) in [(vec![1_000, 2_000, 5_000], 0), (vec![60_000, 90_000], 1)] {
        let mut ground = Ground { order: Order::Partition, ..Ground::new(1) };
        ground.settings.retry.delays_ms = delays_ms;
        // A window that fills behind the head is no reason to copy either.
        (ground.settings.in_hand_max, ground.settings.batch_max) = (16, 4);
        ground.script.set("late", Act::Fail(3));
        let all = publish_behind(&ground, "late");
        let consumer = ground.start();
        ground.until("its second run", |ground| ground.script.runs_of("late").len() > 1).await;
        assert!(ground.done().is_empty(), "{:?}", ground.done());
        ground.until("everything", |ground| ground.done().len() == all.len()).await;
        assert_eq!(ground.done(), all, "in the order of the partition");
        assert_eq!(ground.most_deferred(), copies, "only the head itself");
        assert_eq!(consumer.drain().await, DrainOutcome::Clean);
    }
}

#[tokio::test(start_paused = true)]
async fn g3_in_order_of_the_partition_other_partitions_go_on() {
    let ground = Ground { order: Order::Partition, ..Ground::new(4) };
    ground.script.set("bad", Act::Fail(u32::MAX));
    ground.publish("bad", Some("a"));
    (0..40).for_each(|n| ground.publish(&format!("m{n}"), Some(&format!("k{n}"))));
    let _consumer = ground.start();
    let logs = ground.broker.entries(TOPIC);
    let is_first = |log: &&Vec<(Received, Timestamp)>| log[0].0.id.as_deref() == Some("bad");
    let behind = logs.iter().find(is_first).map_or(0, Vec::len);
    assert!((2..40).contains(&behind), "{behind}");
    ground.until("the other partitions", |ground| ground.done().len() == 41 - behind).await;
    assert_eq!(ground.dead(), []);
    ground.until("all but one", |ground| ground.done().len() == 40).await;
    assert_eq!(ground.dead(), [("bad".to_owned(), Disposition::Exhausted)]);
}

#[tokio::test(start_paused = true)]
async fn g3_in_order_of_the_partition_a_dead_letter_holds_the_partition_where_that_is_asked_for() {
    let mut ground = Ground { order: Order::Partition, ..Ground::new(1) };
    ground.settings.on_dead = OnDead::Hold;
    ground.script.set("bad", Act::Reject);
    let all = publish_behind(&ground, "bad");
    let _consumer = ground.start();
    ground.until("its end", |ground| ground.dead().len() == 1).await;
    tokio::time::sleep(Duration::from_secs(600)).await; // pace: however long it takes
    let copies = ground.database.tables().deferred.len();
    assert_eq!((ground.done().len(), copies), (0, 0), "the broker keeps them");
    ground.script.clear();
    let letter = *ground.database.tables().letters.keys().next().expect("a letter");
    assert!(ground.database.replay(NAME, letter).await);
    ground.until("everything", |ground| ground.done().len() == all.len()).await;
    assert_eq!(ground.done(), all);
}

#[tokio::test(start_paused = true)]
async fn without_an_order_each_message_is_its_own() {
    let mut ground = Ground { order: Order::None, ..Ground::new(1) };
    ground.settings.on_dead = OnDead::Hold;
    ground.settings.retry.delays_ms = vec![5_000, 60_000];
    ground.script.set("late", Act::Fail(3));
    ground.script.set("no", Act::Reject);
    ground.publish("late", Some("a"));
    ground.publish("no", Some("a"));
    (0..100).for_each(|n| ground.publish(&format!("m{n}"), Some("a")));
    let _consumer = ground.start();
    ground.until("the others", |ground| ground.done().len() == 100).await;
    assert_eq!(ground.script.runs_of("late").len(), 2, "in company, and alone: it waits by itself");
    assert_eq!(ground.dead(), [("no".to_owned(), Disposition::Rejected)]);
    ground.until("its copy", |ground| ground.database.tables().deferred.len() == 1).await;
    let row = ground.database.tables().deferred.values().next().cloned().expect("a row");
    assert_eq!(row.work.order_id, None, "nothing waits for it");
    (100..200).for_each(|n| ground.publish(&format!("m{n}"), Some("a")));
    ground.until("more of the key", |ground| ground.done().len() == 200).await;
    ground.until_done(&["late"]).await;
    assert_eq!(ground.most_deferred(), 1);
}
