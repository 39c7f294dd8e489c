//! The consumer's engine on the model, on a virtual clock: sources and stores that answer at the worst
//! moment.

mod all_failing;
mod bounds;
mod ground;
mod neighbours;
mod watchdog;

use ground::{ENDED, Ground, NAME, Notes, TOPIC, TroubledSource, TroubledStore, received, until};
use posthaste::consumer::policy::ConsumerRetry;
use posthaste::consumer::{ConsumerEnd, ConsumerPlan, ConsumerSettings, Identity, IdentityFrom};
use posthaste::retry::RetryPolicy;
use posthaste::source::{Change, Partition, PartitionView, StartFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_unavailable_as_a_whole_is_halved() {
    let ground = Ground::new(1);
    ground.publish("m", 10);
    let store = Arc::new(TroubledStore { fails_together: true, ..ground.store() });
    let _consumer = ground.start(Arc::new(ground.source("a", StartFrom::Earliest)), Arc::clone(&store));
    until("the messages, each alone", || ground.done() == 10).await;
    assert!(store.applies.load(SeqCst) < 100, "{} transactions", store.applies.load(SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_change_that_comes_with_a_sign_of_life_is_heard_also_when_room_comes_back() {
    let mut ground = Ground::new(2);
    ground.publish("m", 40);
    ground.settings =
        ConsumerSettings { in_hand_max: 4, batch_max: 4, transactions_max: 1, ..Default::default() };
    let store = Arc::new(TroubledStore { is_gated: AtomicBool::new(true), ..ground.store() });
    let source = Arc::new(ground.source("a", StartFrom::Earliest));
    let partition = Partition::new(TOPIC, 1);
    // The epoch of the start's seek: the first assignment has the one before.
    let revoked = Change::Revoked { partition, epoch: 2 };
    *source.change.lock().expect("no panic") = Some(revoked);
    let consumer = ground.start(Arc::clone(&source), Arc::clone(&store));
    until("a sign of life", || source.is_asked.load(SeqCst)).await;
    until("both partitions", || consumer.health().partitions == 2).await;
    source.gate.notify_one();
    store.gate.notify_one();
    until("the revocation", || consumer.health().partitions == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_lost_its_end_stops_the_partition_once_what_is_in_hand_is_handled() {
    let mut ground = Ground::new(1);
    ground.publish("m", 4);
    ground.settings =
        ConsumerSettings { in_hand_max: 4, batch_max: 4, transactions_max: 1, ..Default::default() };
    let store = Arc::new(TroubledStore { is_gated: AtomicBool::new(true), ..ground.store() });
    let source = Arc::new(ground.source("a", StartFrom::Earliest));
    let beyond = Change::Beyond { partition: Partition::new(TOPIC, 0), position: 4, end: Some(2) };
    *source.change.lock().expect("no panic") = Some(beyond);
    let consumer = ground.start(Arc::clone(&source), Arc::clone(&store));
    until("a sign of life", || source.is_asked.load(SeqCst)).await;
    source.gate.notify_one();
    until("the change", || source.change.lock().expect("no panic").is_none()).await;
    store.gate.notify_one();
    until("the stop", || !consumer.health().stopped.is_empty()).await;
    assert!(consumer.health().why.contains("the saved position 4 is beyond"), "{:?}", consumer.health());
    let position = ground.database.tables().partitions.values().next().and_then(|row| row.position);
    assert_eq!((ground.done(), position), (4, Some(4)));
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_goes_elsewhere_while_it_is_stopped_is_given_back() {
    let ground = Ground::new(1);
    ground.publish("m", 2);
    let source = Arc::new(ground.source("a", StartFrom::Earliest));
    let consumer = ground.start(Arc::clone(&source), Arc::new(ground.store()));
    until("the messages", || ground.done() == 2).await;
    let of = |partition| (NAME.to_owned(), partition);
    let partition = Partition::new(TOPIC, 0);
    until("the position", || ground.database.tables().partitions[&of(partition.clone())].position == Some(2))
        .await;
    *source.tells.lock().expect("no panic") =
        vec![Change::Beyond { partition: partition.clone(), position: 2, end: Some(1) }];
    until("the stop", || !consumer.health().stopped.is_empty()).await;
    assert!(!ground.database.tables().partitions[&of(partition.clone())].clean);
    *source.tells.lock().expect("no panic") =
        vec![Change::Revoked { partition: partition.clone(), epoch: 2 }];
    until("the release", || ground.database.tables().partitions[&of(partition.clone())].clean).await;
}

#[tokio::test(start_paused = true)]
async fn from_now_on_holds_for_all_partitions_also_when_their_starts_are_not_saved_at_first() {
    let ground = Ground::new(2);
    ground.publish("old", 100);
    let store = Arc::new(TroubledStore { start_fails: AtomicBool::new(true), ..ground.store() });
    let latest = ground.source("a", StartFrom::Latest);
    let source = Arc::new(TroubledSource { sees: |view| view.committed = None, ..latest });
    let plan = ConsumerPlan { start_from: StartFrom::Latest, ..ConsumerPlan::new(NAME, source, store) };
    let consumer = ground.start_plan(plan);
    until("both partitions", || consumer.health().partitions == 2).await;
    ground.publish("new", 100);
    until("what is new", || ground.done() >= 100).await;
    let tables = ground.database.tables();
    assert!(tables.effects.iter().all(|effect| effect.id.starts_with("new")), "{}", tables.effects.len());
}

#[tokio::test(start_paused = true)]
async fn partitions_that_stand_still_leave_room_for_the_others() {
    let mut ground = Ground::new(4);
    ground.settings = ConsumerSettings { in_hand_max: 64, batch_max: 16, ..Default::default() };
    let place = |key: &str| {
        let probe = Ground::new(4);
        probe.broker.publish(TOPIC, received("x", key));
        probe.broker.entries(TOPIC).iter().position(|entries| !entries.is_empty())
    };
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let of = |number| keys.iter().find(|key| place(key) == Some(number)).expect("a key");
    let consumer = ground.start(Arc::new(ground.source("a", StartFrom::Earliest)), Arc::new(ground.store()));
    until("all partitions", || consumer.health().partitions == 4).await;
    for number in 0..3 {
        (0..200)
            .for_each(|n| ground.broker.publish(TOPIC, received(&format!("away{number}-{n}"), of(number))));
        tokio::time::sleep(Duration::from_secs(5)).await; // pace: they fill their share one after the other
    }
    (0..200).for_each(|n| ground.broker.publish(TOPIC, received(&format!("fine{n}"), of(3))));
    until("the other partition", || ground.done() == 200).await;
    assert!(consumer.health().in_hand < 64, "{:?}", consumer.health());
}

#[tokio::test(start_paused = true)]
async fn after_deaths_deferred_messages_take_turns_with_new_ones_and_care_ends_at_the_end() {
    let mut ground = Ground::new(2);
    ground.notes = Arc::new(Notes { takes: Duration::from_millis(5), ..Notes::default() });
    let then = RetryPolicy { max_attempts: 1000, initial_ms: 1000, max_ms: 1000, ..RetryPolicy::default() };
    ground.settings.retry = ConsumerRetry { delays_ms: vec![], then: Some(then) };
    let begin = |member: &str| {
        let source = Arc::new(ground.source(member, StartFrom::Earliest));
        let plan = ConsumerPlan::new(NAME, source, Arc::new(ground.store()));
        ground.start_plan(ConsumerPlan { member: member.into(), ..plan })
    };
    for n in 0..6 {
        let member = format!("dead-{n}");
        let consumer = begin(&member);
        until("a start", || consumer.health().partitions == 2).await;
        drop(consumer);
        ground.broker.kill(NAME, &member);
    }
    ground.broker.publish(TOPIC, received("bad", "a"));
    (0..1_000).for_each(|n| ground.broker.publish(TOPIC, received(&format!("m{n}"), "b")));
    let _consumer = begin("alive");
    until("the backlog", || ground.done() == 1_000).await;
    let runs = |id: &str| {
        let runs = ground.notes.runs.lock().expect("no panic");
        runs.iter().filter(|(ran, _)| ran == id).map(|(_, at)| *at).collect::<Vec<_>>()
    };
    assert!(runs("bad").len() > 3, "a try is due each second: {:?}", runs("bad"));
    // The place of the deaths is behind, though few messages came: keys run side by side again.
    tokio::time::sleep(Duration::from_secs(5)).await; // pace: a few looks at the deferred
    ground.publish("n", 64);
    until("what came later", || ground.done() == 1_064).await;
    let began = runs("n0")[0];
    assert!(runs("n63")[0].duration_since(began) < Duration::from_millis(5 * 60), "one by one for ever");
}

#[tokio::test(start_paused = true)]
async fn a_marker_at_the_end_of_the_log_is_no_lag() {
    let ground = Ground::new(1);
    ground.publish("m", 1);
    let source = ground.source("a", StartFrom::Earliest);
    // A transaction's marker has a position, and nobody delivers it. The source commits behind it.
    let sees = |view: &mut PartitionView| {
        let is_read = view.committed == view.end;
        view.end = view.end.map(|end| end + 1);
        view.committed = if is_read { view.end } else { view.committed };
    };
    let consumer = ground.start(Arc::new(TroubledSource { sees, ..source }), Arc::new(ground.store()));
    until("the message", || ground.done() == 1).await;
    tokio::time::sleep(Duration::from_secs(120)).await; // pace: longer than a stall is tolerated
    assert!(consumer.health().ready, "{:?}", consumer.health());
}

#[tokio::test(start_paused = true)]
async fn messages_without_an_identity_that_come_slowly_are_not_buried() {
    let ground = Ground::new(1);
    let (source, store) = (Arc::new(ground.source("a", StartFrom::Earliest)), Arc::new(ground.store()));
    let identity = Identity { from: vec![IdentityFrom::Header("x-id".to_owned())], ..Identity::default() };
    let mut consumer = ground.start_plan(ConsumerPlan { identity, ..ConsumerPlan::new(NAME, source, store) });
    for n in 0..20 {
        ground.broker.publish(TOPIC, received(&format!("m{n}"), "k"));
        tokio::time::sleep(Duration::from_secs(1)).await; // pace: one by one
    }
    let why = consumer.failed().await;
    assert!(why.contains("identity"), "{why}");
    assert_eq!(ground.database.tables().letters_of(NAME).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_filled_the_window_alone_makes_room_for_one_that_comes_later() {
    let mut ground = Ground::new(2);
    ground.settings = ConsumerSettings { in_hand_max: 64, batch_max: 16, ..Default::default() };
    let begin = |member: &str| {
        let source = Arc::new(ground.source(member, StartFrom::Earliest));
        ground.start(source, Arc::new(ground.store()))
    };
    let (first, second) = (begin("a"), begin("b"));
    until("one partition each", || first.health().partitions == 1 && second.health().partitions == 1).await;
    ground.publish("away", 400);
    until("a full window", || first.health().in_hand == 64).await;
    drop(second);
    ground.broker.kill(NAME, "b");
    until("the other partition", || first.health().partitions == 2).await;
    until("room", || (1..48).contains(&first.health().in_hand) && first.health().partitions == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_whose_log_is_not_known_yet_waits_and_the_others_begin() {
    static IS_KNOWN: AtomicBool = AtomicBool::new(false);
    let ground = Ground::new(2);
    ground.publish("m", 100);
    let sees = |view: &mut PartitionView| {
        view.committed = None;
        if view.partition.number == 1 && !IS_KNOWN.load(SeqCst) {
            (view.first, view.end) = (None, None);
        }
    };
    let source = Arc::new(TroubledSource { sees, ..ground.source("a", StartFrom::Earliest) });
    let _consumer = ground.start(source, Arc::new(ground.store()));
    let known = ground.broker.entries(TOPIC)[0].len();
    until("the partition that is known", || (1..100).contains(&known) && ground.done() == known).await;
    IS_KNOWN.store(true, SeqCst);
    until("the other one", || ground.done() == 100).await;
}

#[tokio::test(start_paused = true)]
async fn from_now_on_is_said_of_a_topic_once_all_its_partitions_are_known() {
    static IS_KNOWN: AtomicBool = AtomicBool::new(false);
    static LOOKS: AtomicUsize = AtomicUsize::new(0);
    let ground = Ground::new(2);
    ground.publish("old", 100);
    let sees = |view: &mut PartitionView| {
        view.committed = None;
        LOOKS.fetch_add(1, SeqCst);
        if view.partition.number == 1 && !IS_KNOWN.load(SeqCst) {
            (view.first, view.end) = (None, None);
        }
    };
    let source = Arc::new(TroubledSource { sees, ..ground.source("a", StartFrom::Latest) });
    let plan = ConsumerPlan::new(NAME, source, Arc::new(ground.store()));
    let _consumer = ground.start_plan(ConsumerPlan { start_from: StartFrom::Latest, ..plan });
    let begun = || ground.database.tables().partitions.values().filter(|row| row.position.is_some()).count();
    until("tries", || LOOKS.load(SeqCst) > 20).await;
    assert_eq!(begun(), 0, "a neighbour that begins would make the other an added one");
    IS_KNOWN.store(true, SeqCst);
    until("both partitions", || begun() == 2).await;
    ground.publish("new", 100);
    until("what is new", || ground.done() >= 100).await;
    assert!(ground.database.tables().effects.iter().all(|effect| effect.id.starts_with("new")));
}

/// Marks without effects may be committed: nothing goes on before somebody has looked, and it says why.
#[tokio::test(start_paused = true)]
async fn a_handler_that_commits_by_itself_stops_its_consumer() {
    let ground = Ground::new(2);
    ground.publish("m", 10);
    let store = Arc::new(ground.store());
    let mut consumer = ground.start(Arc::new(ground.source("a", StartFrom::Earliest)), Arc::clone(&store));
    until("the messages", || ground.done() == 10).await;
    store.commits.store(true, SeqCst);
    ground.publish("n", 10);
    let end = consumer.ended().await;
    assert!(
        matches!(&end, ConsumerEnd::Refused(why) if why.contains(NAME) && why.contains(ENDED)),
        "{end:?}"
    );
    let (health, applies) = (consumer.health(), store.applies.load(SeqCst));
    assert!(!health.ready && health.why == end.why(), "{health:?}");
    tokio::time::sleep(Duration::from_secs(60)).await; // pace: nothing is begun any more
    assert_eq!((store.applies.load(SeqCst), ground.done()), (applies, 10));
    let tables = ground.database.tables();
    assert_eq!((tables.letters_of(NAME).len(), tables.deferred.len()), (0, 0));
}

/// One that was deferred commits no less.
#[tokio::test(start_paused = true)]
async fn a_handler_of_a_deferred_message_that_commits_by_itself_stops_its_consumer() {
    let mut ground = Ground::new(1);
    ground.settings.retry = ConsumerRetry { delays_ms: vec![60_000], then: None };
    ground.broker.publish(TOPIC, received("bad", "a"));
    let store = Arc::new(ground.store());
    let mut consumer = ground.start(Arc::new(ground.source("a", StartFrom::Earliest)), Arc::clone(&store));
    until("its copy", || ground.database.tables().deferred.len() == 1).await;
    store.commits.store(true, SeqCst);
    let why = consumer.failed().await;
    assert!(why.contains(NAME) && why.contains(ENDED), "{why}");
    assert_eq!(ground.database.tables().deferred.len(), 1, "it is there for the next start");
}

/// A start that finds its partition elsewhere hears of it late: it has come back meanwhile.
#[tokio::test(start_paused = true)]
async fn a_partition_that_came_back_while_its_start_found_it_gone_is_read() {
    let ground = Ground::new(1);
    ground.publish("m", 10);
    let source = Arc::new(ground.source("a", StartFrom::Earliest));
    source.is_elsewhere.store(true, SeqCst);
    let _consumer = ground.start(Arc::clone(&source), Arc::new(ground.store()));
    until("the start", || source.is_asked.load(SeqCst)).await;
    let seen = source.inner.view().await.expect("a view").swap_remove(0);
    let (partition, epoch) = (seen.partition, seen.epoch);
    let back = Change::Assigned { partition: partition.clone(), epoch: epoch + 1 };
    *source.tells.lock().expect("no panic") = vec![Change::Revoked { partition, epoch }, back];
    until("what is told", || source.tells.lock().expect("no panic").is_empty()).await;
    source.gate.notify_one();
    until("the messages", || ground.done() == 10).await;
}
