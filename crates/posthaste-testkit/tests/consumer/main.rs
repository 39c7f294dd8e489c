//! The consumer's engine on the model, on a virtual clock: cases that a seed meets too rarely.

mod counting;
mod ground;
mod order;
mod queue;

use bytes::Bytes;
use ground::{Act, Ground, NAME, PATIENCE, TOPIC, received};
use posthaste::consumer::{ConsumerSettings, Disposition, Filter, Identity, IdentityFrom, OnDead};
use posthaste::relay::DrainOutcome;
use posthaste::source::{Partition, Received};
use posthaste_testkit::conformance::eventually;
use posthaste_testkit::faults::{Fault, Faults, Op};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn messages_are_handled_once_and_a_drain_gives_everything_back() {
    let ground = Ground::new(3);
    let ids: Vec<String> = (0..200).map(|n| format!("m{n}")).collect();
    ids.iter().enumerate().for_each(|(n, id)| ground.publish(id, Some(&format!("k{}", n % 7))));
    let consumer = ground.start();
    ground.until_done(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(consumer.drain().await, DrainOutcome::Clean);
    assert_eq!(ground.done().len(), 200);
    let tables = ground.database.tables();
    let positions: i64 = tables.partitions.values().filter_map(|row| row.position).sum();
    assert_eq!(positions, 200, "everything is saved");
    assert!(tables.partitions.values().all(|row| row.clean), "given back (G8)");
}

#[tokio::test(start_paused = true)]
async fn f52_a_failure_is_tried_again_after_1_2_and_5_seconds_while_other_keys_go_on() {
    let ground = Ground::new(1);
    ground.script.set("bad", Act::Fail(4));
    ground.publish("bad", Some("a"));
    ground.publish("behind", Some("a"));
    ground.publish("other", Some("b"));
    let _consumer = ground.start();
    ground.until_done(&["other"]).await;
    assert!(!ground.done().contains(&"behind".to_owned()), "the key keeps its order (G3)");
    ground.until_done(&["bad", "behind"]).await;
    assert_eq!(ground.done(), ["other", "bad", "behind"]);
    // The first run was in company and counts for nobody.
    let runs = ground.script.runs_of("bad");
    let gaps: Vec<f64> = runs.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    let alone = &gaps[gaps.len() - 3..];
    for (gap, least) in alone.iter().zip([1.0, 2.0, 5.0]) {
        assert!((least..least * 1.2 + 0.5).contains(gap), "{gaps:?}");
    }
    assert_eq!(ground.dead(), []);
}

#[tokio::test(start_paused = true)]
async fn what_fails_four_times_is_dead_and_its_key_goes_on() {
    let ground = Ground::new(1);
    ground.script.set("bad", Act::Fail(u32::MAX));
    ground.script.set("no", Act::Reject);
    ground.script.set("bug", Act::Panic);
    for (id, key) in
        [("bad", "a"), ("after", "a"), ("no", "b"), ("after-no", "b"), ("bug", "c"), ("after-bug", "c")]
    {
        ground.publish(id, Some(key));
    }
    let consumer = ground.start();
    ground.until_done(&["after", "after-no", "after-bug"]).await;
    let mut dead = ground.dead();
    dead.sort();
    assert_eq!(
        dead,
        [
            ("bad".to_owned(), Disposition::Exhausted),
            ("bug".to_owned(), Disposition::Panic),
            ("no".to_owned(), Disposition::Rejected)
        ]
    );
    let tables = ground.database.tables();
    let letters = tables.letters_of(NAME);
    let attempts = |id: &str| letters.iter().find(|l| &*l.row.work.id == id).map(|l| l.row.work.attempts);
    assert_eq!((attempts("bad"), attempts("no"), attempts("bug")), (Some(4), Some(1), Some(4)));
    assert_eq!(consumer.drain().await, DrainOutcome::Clean);
    assert_eq!(ground.database.tables().partitions.values().next().and_then(|row| row.position), Some(6));
}

#[tokio::test(start_paused = true)]
async fn a_dead_message_holds_its_key_where_that_is_asked_for() {
    let mut ground = Ground::new(1);
    ground.settings.on_dead = OnDead::Hold;
    ground.settings.memory_wait_max_ms = 3_000;
    ground.script.set("bad", Act::Reject);
    ground.publish("bad", Some("a"));
    ground.publish("behind", Some("a"));
    ground.publish("other", Some("b"));
    let _consumer = ground.start();
    ground.until_done(&["other"]).await;
    ground
        .until("the held message to be deferred", |ground| ground.database.tables().deferred.len() == 1)
        .await;
    assert!(!ground.done().contains(&"behind".to_owned()));
    ground.script.clear();
    let letter = *ground.database.tables().letters.keys().next().expect("a letter");
    assert!(ground.database.replay(NAME, letter).await);
    ground.until_done(&["bad", "behind"]).await;
    assert_eq!(ground.done(), ["other", "bad", "behind"], "the replayed one goes first");
}

#[tokio::test(start_paused = true)]
async fn f50_a_dependency_that_is_away_pauses_its_partition_and_spends_no_attempt() {
    let ground = Ground::new(1);
    for id in ["x1", "x2", "x3"] {
        ground.script.set(id, Act::Away);
        ground.publish(id, Some(id));
    }
    let consumer = ground.start();
    ground.until("the breaker", |_| consumer.health().unavailable == ["bank"]).await;
    ground.publish("later", Some("z"));
    tokio::time::sleep(Duration::from_secs(600)).await; // pace: an outage of ten minutes
    assert!(!consumer.health().ready);
    assert_eq!((ground.done().len(), ground.dead().len()), (0, 0), "the partition is paused");
    let tries = ground.script.runs.lock().expect("no panic").len();
    assert!(tries < 40, "probes are 1 s apart, doubling to 60 s: {tries}");
    ground.script.clear();
    ground.until_done(&["x1", "x2", "x3", "later"]).await;
    assert!(ground.database.tables().effects.iter().all(|effect| effect.attempt == 1));
    ground.until("health", |_| consumer.health().ready).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_that_says_unavailable_while_others_succeed_dies() {
    let ground = Ground::new(1);
    ground.script.set("liar", Act::Away);
    ground.publish("liar", Some("l"));
    for n in 0..20 {
        ground.publish(&format!("m{n}"), Some(&format!("k{n}")));
    }
    let _consumer = ground.start();
    ground.until("its end", |ground| ground.dead().len() == 1).await;
    assert_eq!(ground.dead(), [("liar".to_owned(), Disposition::Exhausted)]);
    ground.until_done(&["m0", "m19"]).await;
}

/// A dead letter that somebody sent back is no duplicate, also where it lies behind a message of its key that
/// is set aside.
#[tokio::test(start_paused = true)]
async fn g6_a_letter_that_is_sent_back_behind_a_deferred_message_is_handled() {
    let mut ground = Ground::new(1);
    ground.settings.retry.delays_ms = vec![20_000];
    ground.script.set("bad", Act::Reject);
    ground.publish("bad", Some("a"));
    let _consumer = ground.start();
    ground.until("its end", |ground| ground.dead().len() == 1).await;
    ground.script.clear();
    ground.script.set("late", Act::Fail(2));
    ground.publish("late", Some("a"));
    ground.publish("bad", Some("a"));
    ground.until_done(&["late", "bad"]).await;
    assert_eq!((ground.dead(), ground.done().len()), (vec![], 2));
}

/// A lock that is held for ever (a prepared transaction, a migration that nobody ends) spends no attempt, and
/// after a minute it is shown.
#[tokio::test(start_paused = true)]
async fn a_message_that_meets_a_lock_for_a_minute_is_shown() {
    let ground = Ground {
        settings: ConsumerSettings { handler_timeout_ms: 3_600_000, ..Default::default() },
        ..Ground::new(1)
    };
    ground.script.set("twin", Act::Hang);
    ground.publish("twin", Some("a"));
    let consumer = ground.start();
    ground.until("the first copy runs", |ground| !ground.script.runs_of("twin").is_empty()).await;
    ground.publish("twin", Some("b"));
    let met = tokio::time::Instant::now();
    ground.until("the lock is shown", |_| !consumer.health().ready).await;
    let why = consumer.health().why;
    assert!(why.contains("orders/0") && why.contains("met a lock for 6") && why.contains("doctor"), "{why}");
    assert!(met.elapsed() >= Duration::from_secs(60), "{:?}", met.elapsed());
    ground.publish("other", Some("c"));
    ground.until_done(&["other"]).await;
    assert_eq!((ground.dead(), ground.script.runs_of("twin").len()), (vec![], 1));
}

#[tokio::test(start_paused = true)]
async fn a_database_that_went_back_takes_its_consumer_with_it() {
    let ground = Ground::new(1);
    (0..50).for_each(|n| ground.publish(&format!("m{n}"), Some(&format!("k{}", n % 5))));
    let _consumer = ground.start();
    ground.until_done(&["m49"]).await;
    let backup = ground.database.tables();
    (50..100).for_each(|n| ground.publish(&format!("m{n}"), Some(&format!("k{}", n % 5))));
    ground.until_done(&["m99"]).await;
    ground.database.restore(backup);
    assert!(!ground.done().contains(&"m99".to_owned()), "restored");
    // What comes now is the first that the restored database is asked about.
    (100..120).for_each(|n| ground.publish(&format!("m{n}"), Some(&format!("k{}", n % 5))));
    ground.until_done(&["m50", "m99", "m119"]).await;
    let place = |id: &str| id[1..].parse::<usize>().expect("a number");
    let done: Vec<usize> = ground.done().iter().map(|id| place(id)).collect();
    for key in 0..5 {
        let of_key: Vec<usize> = done.iter().copied().filter(|n| n % 5 == key).collect();
        assert!(of_key.is_sorted(), "a key is out of order: {of_key:?}");
    }
    let (each, all) = (done.iter().collect::<std::collections::BTreeSet<_>>().len(), done.len());
    assert_eq!((each, all), (120, 120), "nothing is missing, nothing is twice");
}

#[tokio::test(start_paused = true)]
async fn a_slow_retry_is_deferred_and_the_position_goes_on() {
    let mut ground = Ground::new(1);
    ground.settings.retry.delays_ms = vec![60_000];
    ground.script.set("slow", Act::Fail(2));
    ground.publish("slow", Some("a"));
    (0..10).for_each(|n| ground.publish(&format!("m{n}"), Some(&format!("k{n}"))));
    let consumer = ground.start();
    ground.until_done(&["m9"]).await;
    let position =
        |ground: &Ground| ground.database.tables().partitions.values().next().and_then(|row| row.position);
    ground.until("the position", |ground| position(ground) == Some(11)).await;
    assert_eq!(ground.database.tables().deferred.len(), 1);
    ground.until_done(&["slow"]).await;
    assert_eq!(ground.database.tables().effects.last().map(|effect| effect.attempt), Some(2));
    assert_eq!(consumer.drain().await, DrainOutcome::Clean);
}

#[tokio::test(start_paused = true)]
async fn f50_a_deferred_message_whose_dependency_is_away_is_asked_as_a_breaker_would() {
    let mut ground = Ground::new(1);
    ground.settings.retry.delays_ms = vec![60_000];
    ground.script.set("slow", Act::Fail(1));
    ground.publish("slow", Some("a"));
    let _consumer = ground.start();
    ground.until("the copy", |ground| ground.database.tables().deferred.len() == 1).await;
    ground.script.set("slow", Act::Away);
    tokio::time::sleep(Duration::from_secs(360)).await; // pace: an outage of five minutes
    let runs = ground.script.runs_of("slow");
    let gaps: Vec<f64> = runs.windows(2).skip(1).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    for (gap, least) in gaps.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]) {
        assert!((least..least + 2.5).contains(gap), "{gaps:?}");
    }
    ground.script.clear();
    ground.until_done(&["slow"]).await;
    assert_eq!(ground.database.tables().effects.last().map(|effect| effect.attempt), Some(2));
}

#[tokio::test(start_paused = true)]
async fn g8_a_partition_is_given_back_although_the_first_save_failed() {
    let ground = Ground::new(2);
    ground.publish("m", Some("a"));
    let (faults, others) = (Faults::none(), Faults::none());
    let first = ground.start_with(faults.clone());
    ground.until_done(&["m"]).await;
    ground.until("both", |_| first.health().partitions == 2).await;
    faults.always(Op::Save, Fault::Refuse);
    others.always(Op::Take, Fault::Refuse);
    let _second = ground.start_with(others);
    ground.until("one goes elsewhere", |_| first.health().partitions == 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await; // pace: it was tried, in vain
    let clean =
        |ground: &Ground| ground.database.tables().partitions.values().filter(|row| row.clean).count();
    assert_eq!(clean(&ground), 0);
    faults.heal();
    ground.until("the release", |ground| clean(ground) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn messages_without_an_identity_stop_the_consumer_and_nothing_is_buried() {
    let mut ground = Ground::new(1);
    ground.identity = Identity { from: vec![IdentityFrom::Header("x-id".to_owned())], ..Identity::default() };
    (0..25).for_each(|_| ground.broker.publish(TOPIC, received(None, None)));
    let mut consumer = ground.start();
    let why = consumer.failed().await;
    assert!(why.contains("identity"), "{why}");
    assert_eq!((ground.dead().len(), ground.done().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_no_handler_takes_is_passed_over_without_a_mark() {
    let mut ground = Ground::new(1);
    ground.filter = Filter::types(["placed"]);
    let typed = |id: &str, event_type: &'static str| Received {
        headers: vec![("type".to_owned(), Bytes::from_static(event_type.as_bytes()))],
        ..received(Some(id), None)
    };
    ground.broker.publish(TOPIC, typed("a", "placed"));
    ground.broker.publish(TOPIC, typed("b", "cancelled"));
    let consumer = ground.start();
    ground.until_done(&["a"]).await;
    assert_eq!(consumer.drain().await, DrainOutcome::Clean);
    let tables = ground.database.tables();
    assert_eq!(
        (tables.marks.len(), tables.partitions.values().next().and_then(|row| row.position)),
        (1, Some(2))
    );
}

#[tokio::test(start_paused = true)]
async fn members_share_partitions_and_nothing_is_lost_or_twice() {
    let ground = Ground::new(4);
    let publish = |from: usize, until: usize| {
        (from..until).for_each(|n| ground.publish(&format!("m{n}"), Some(&format!("k{}", n % 13))));
    };
    publish(0, 200);
    let first = ground.start();
    let second = ground.start();
    ground.until_done(&["m199"]).await;
    publish(200, 400);
    let third = ground.start();
    assert_eq!(second.drain().await, DrainOutcome::Clean);
    publish(400, 600);
    drop(first); // a death
    ground.broker.kill(NAME, "member-1");
    let all: Vec<String> = (0..600).map(|n| format!("m{n}")).collect();
    ground.until_done(&all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(ground.done().len(), 600);
    assert_eq!(third.drain().await, DrainOutcome::Clean);
}

#[tokio::test(start_paused = true)]
async fn f21_a_partition_that_was_taken_late_and_given_back_is_taken_anew() {
    let ground = Ground::new(2);
    let moved = Partition::new(TOPIC, 1);
    let owners = |ground: &Ground| -> Vec<Option<String>> {
        let tables = ground.database.tables();
        let row = |number| tables.partitions.get(&(NAME.to_owned(), Partition::new(TOPIC, number)));
        let owner = |number| row(number).filter(|row| !row.clean)?.owner.clone();
        vec![owner(0), owner(1)]
    };
    let are = |first: &str, second: &str| [Some(first.to_owned()), Some(second.to_owned())];
    let late = Faults::none();
    late.once(Op::Take, Fault::Hold);
    let first = ground.start_with(late.clone());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let second = ground.start();
    ground
        .until("the second one's partition", |ground| owners(ground)[1].as_deref() == Some("member-2"))
        .await;
    late.let_go();
    ground.until("the late taking", |ground| owners(ground) == are("member-1", "member-1")).await;
    ground.until("the reader as its owner", |ground| owners(ground) == are("member-1", "member-2")).await;
    // Neither takes it from the other again.
    let taken_at =
        |ground: &Ground| ground.database.tables().partitions[&(NAME.to_owned(), moved.clone())].taken_at;
    let taken = taken_at(&ground);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((owners(&ground), taken_at(&ground)), (are("member-1", "member-2").to_vec(), taken));
    let ids: Vec<String> = (0..20).map(|n| format!("m{n}")).collect();
    ids.iter().for_each(|id| ground.publish(id, Some(id)));
    ground.until_done(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(ground.done().len(), 20);
    assert_eq!((first.drain().await, second.drain().await), (DrainOutcome::Clean, DrainOutcome::Clean));
    assert_eq!(owners(&ground), [None, None], "given back (G8)");
}

#[tokio::test(start_paused = true)]
async fn f21_a_message_whose_own_server_is_away_is_found_and_dies_alone() {
    let ground = Ground::new(1);
    ground.script.set("bad", Act::Outage);
    ground.publish("bad", Some("bad"));
    let others: Vec<String> = (0..200).map(|n| format!("m{n}")).collect();
    others.iter().for_each(|id| ground.publish(id, Some(id)));
    let consumer = ground.start();
    ground.until_done(&others.iter().map(String::as_str).collect::<Vec<_>>()).await;
    eventually("the message to be given up", PATIENCE, || async {
        (!ground.dead().is_empty()).then_some(())
    })
    .await;
    assert_eq!((ground.dead().len(), ground.script.runs_of("bad").len() >= 12), (1, true));
    assert_eq!(consumer.drain().await, DrainOutcome::Clean);
}
