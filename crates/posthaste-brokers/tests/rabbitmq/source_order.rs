//! The handover rule: whoever leaves a queue cuts its connection, and no key is out of order.

use super::source::{publish_all, single};
use super::*;
use crate::ground::consuming::{Stumbling, consumer, effects, numbered, plan, until};
use posthaste::source::{Limit, Source};
use posthaste_brokers::GroupMember;
use posthaste_brokers::rabbitmq::RabbitmqSource;
use posthaste_testkit::inbox::InboxDatabase;
use posthaste_testkit::require_service;
use std::collections::BTreeSet;

const KEYS: usize = 5;
const ALL: Limit = Limit { events: 1_000, bytes: 1 << 24 };

fn are_in_order(database: &InboxDatabase) -> bool {
    effects(database).values().all(|ids| ids.is_sorted())
}

/// Three members; the oldest leaves and a new one comes, over and over, while messages come. Answers whether
/// each key was in order.
async fn deploy_after_deploy(bed: &Bed, rounds: usize, cancels: bool) -> bool {
    let (queue, database, handler) =
        (unique("deploys"), InboxDatabase::default(), Arc::<Stumbling>::default());
    bed.queue_with(&queue, single()).await;
    let join = |member: usize| {
        let plan = GroupMember { in_hand_max: 60, ..plan(&queue, member) };
        let source = Arc::new(RabbitmqSource::start(&bed.config(), &plan).expect("valid"));
        if cancels {
            source.cancel_at_drain();
        }
        consumer(source, &database, &handler, member)
    };
    let mut members: std::collections::VecDeque<_> = (0..3).map(join).collect();
    let mut sent = 0;
    for round in 0..rounds {
        let batch: Vec<_> = (sent..sent + 300).map(|n| numbered(n, KEYS)).collect();
        publish_all(bed, &queue, &batch).await;
        sent += 300;
        // Some of them are done, and most are not.
        let least = sent - 280;
        until(async || database.tables().effects.len() >= least).await;
        members.push_back(join(3 + round));
        let oldest = members.pop_front().expect("three");
        oldest.drain().await;
        if cancels && !are_in_order(&database) {
            return false;
        }
    }
    until(async || database.tables().effects.len() >= sent).await;
    for member in members {
        member.drain().await;
    }
    let done: Vec<String> = effects(&database).into_values().flatten().collect();
    assert_eq!((done.len(), done.iter().collect::<BTreeSet<_>>().len()), (sent, sent), "each of them once");
    assert_eq!(bed.count(&queue).await, 0, "all are acknowledged");
    are_in_order(&database)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_deploy_after_deploy_no_key_is_out_of_order() {
    let bed = require_service!(Bed::open().await);
    assert!(deploy_after_deploy(&bed, 8, false).await);
}

/// The rule is no superstition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_with_basic_cancel_a_key_would_be_out_of_order() {
    let bed = require_service!(Bed::open().await);
    assert!(!deploy_after_deploy(&bed, 40, true).await, "then this test proves nothing: look at it again");
}

/// A member takes three messages and begins to leave. Answers what the next one gets while the three are in
/// hand, and what it gets when they are given up.
async fn leave(bed: &Bed, cancels: bool) -> (Vec<String>, Vec<String>) {
    let queue = unique("leave");
    bed.queue_with(&queue, single()).await;
    publish_all(bed, &queue, &(1..=6).map(|n| numbered(n, 1)).collect::<Vec<_>>()).await;
    let join = |member| {
        let plan = GroupMember { in_hand_max: 3, ..plan(&queue, member) };
        RabbitmqSource::start(&bed.config(), &plan).expect("valid")
    };
    let leaving = join(1);
    let mut taken = Vec::new();
    until(async || {
        taken.extend(leaving.next(ALL, Duration::from_millis(50)).await.expect("an answer").deliveries);
        taken.len() == 3
    })
    .await;
    let next = join(2);
    until(async || next.view().await.expect("a view").len() == 1).await;
    if cancels {
        leaving.cancel_at_drain();
    }
    let ids = |batch: posthaste::source::Batch| {
        batch.deliveries.into_iter().filter_map(|delivery| delivery.message.id).collect::<Vec<_>>()
    };
    let meanwhile = async {
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.extend(ids(next.next(ALL, Duration::from_millis(100)).await.expect("an answer")));
        }
        seen
    };
    let (_, meanwhile) = tokio::join!(leaving.drain(Duration::from_millis(1_500)), meanwhile);
    let mut after = Vec::new();
    if !cancels {
        until(async || {
            after.extend(ids(next.next(ALL, Duration::from_millis(50)).await.expect("an answer")));
            after.len() >= 3
        })
        .await;
    }
    (meanwhile, after)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_the_next_member_gets_nothing_while_a_leaving_one_has_messages_in_hand() {
    let bed = require_service!(Bed::open().await);
    let (meanwhile, after) = leave(&bed, false).await;
    assert_eq!(meanwhile, [""; 0], "what is in hand is before it");
    assert_eq!(after, ["m00001", "m00002", "m00003"], "given up, they come first");
    let (meanwhile, _) = leave(&bed, true).await;
    assert_eq!(meanwhile, ["m00004", "m00005", "m00006"], "cancelled, they would be overtaken");
}

/// Without an order three members share a queue, and each effect happens once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g5_members_without_an_order_share_a_queue_and_each_effect_happens_once() {
    let bed = require_service!(Bed::open().await);
    let (queue, database, handler) =
        (unique("shared"), InboxDatabase::default(), Arc::<Stumbling>::default());
    bed.queue_with(&queue, super::source::quorum(&[])).await;
    let sources: Vec<_> = (0..3)
        .map(|member| {
            let plan = GroupMember {
                order: posthaste::consumer::Order::None,
                in_hand_max: 50,
                ..plan(&queue, member)
            };
            Arc::new(RabbitmqSource::start(&bed.config(), &plan).expect("valid"))
        })
        .collect();
    let members = sources.iter().enumerate();
    let mut members: Vec<_> =
        members.map(|(n, source)| consumer(Arc::clone(source) as Arc<_>, &database, &handler, n)).collect();
    for batch in 0..4 {
        publish_all(
            &bed,
            &queue,
            &(batch * 200..(batch + 1) * 200).map(|n| numbered(n, KEYS)).collect::<Vec<_>>(),
        )
        .await;
        if batch == 2 {
            // One dies with its hands full.
            sources[0].freeze().await;
        }
    }
    until(async || database.tables().effects.len() >= 800).await;
    for member in members.drain(1..) {
        member.drain().await;
    }
    let done: Vec<String> = effects(&database).into_values().flatten().collect();
    assert_eq!((done.len(), done.iter().collect::<BTreeSet<_>>().len()), (800, 800));
}
