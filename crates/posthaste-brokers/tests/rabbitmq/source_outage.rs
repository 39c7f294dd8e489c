//! A broker that goes away, a link that is half open, a channel that the broker closes, and a message that
//! comes back too often: nothing is lost, and nothing happens twice.

use super::source::{publish_all, quorum, single};
use super::*;
use crate::ground::consuming::{Stumbling, consumer, effects, numbered, plan, until};
use posthaste::source::{Change, Delivery, Limit, Source, Standing};
use posthaste_brokers::GroupMember;
use posthaste_brokers::rabbitmq::RabbitmqSource;
use posthaste_testkit::inbox::InboxDatabase;
use posthaste_testkit::require_service;
use posthaste_testkit::services::Proxy;
use std::collections::BTreeSet;

const ALL: Limit = Limit { events: 1_000, bytes: 1 << 24 };

/// Calls until so many came. What is out of reach is asked again.
async fn take(source: &RabbitmqSource, count: usize, changes: &mut Vec<Change>) -> Vec<Delivery> {
    let mut taken = Vec::new();
    until(async || {
        if let Ok(batch) = source.next(ALL, Duration::from_millis(50)).await {
            changes.extend(batch.changes);
            taken.extend(batch.deliveries);
        }
        taken.len() >= count
    })
    .await;
    taken
}

fn ids(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().filter_map(|delivery| delivery.message.id.as_deref()).collect()
}

async fn revoked(source: &RabbitmqSource, changes: &mut Vec<Change>) {
    until(async || {
        if let Ok(batch) = source.next(Limit { events: 0, bytes: 0 }, Duration::from_millis(50)).await {
            changes.extend(batch.changes);
        }
        changes.iter().any(|change| matches!(change, Change::Revoked { .. }))
    })
    .await;
}

/// Restarted, frozen and closed by its timeout, on a broker of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f31_a_broker_that_was_away_gives_again_what_was_not_acknowledged() {
    let mut server = require_service!(Rabbitmq::start(&["consumer_timeout = 1500"]).await);
    server.eval("application:set_env(rabbit, channel_tick_interval, 300)").await.expect("set");
    let bed = Bed::on(&server).await;
    let queue = unique("away");
    bed.queue_with(&queue, single()).await;
    publish_all(&bed, &queue, &(1..=6).map(|n| numbered(n, 1)).collect::<Vec<_>>()).await;
    let source = RabbitmqSource::start(&bed.config(), &plan(&queue, 1)).expect("valid");
    let mut changes = Vec::new();
    let taken = take(&source, 6, &mut changes).await;
    let first = source.ack(&[taken[0].ticket.clone()]).await;
    assert_eq!(first, Ok(vec![Standing::Settled]));

    // A breaker is open, and the time is over: the broker closes the channel.
    source.pause(taken[0].partition()).await.expect("assigned");
    revoked(&source, &mut changes).await;
    let late = source.ack(&[taken[1].ticket.clone()]).await;
    assert_eq!(late, Ok(vec![Standing::Revoked]), "a ticket of an earlier connection settles nothing");
    let again = take(&source, 5, &mut changes).await;
    assert_eq!(ids(&again), ["m00002", "m00003", "m00004", "m00005", "m00006"], "a pause ends with it");
    let second = source.ack(&[again[0].ticket.clone()]).await;
    assert_eq!(second, Ok(vec![Standing::Settled]));

    server.eval("application:set_env(rabbit, consumer_timeout, 600000)").await.expect("set");
    server.stop().await.expect("stopped");
    server.start_again().await.expect("back");
    server.eval("application:set_env(rabbit, consumer_timeout, 600000)").await.expect("set");
    changes.clear();
    let again = take(&source, 4, &mut changes).await;
    let again: Vec<_> = again.into_iter().rev().take(4).rev().collect();
    assert_eq!(ids(&again), ["m00003", "m00004", "m00005", "m00006"]);
    let tickets: Vec<_> = again.iter().map(|delivery| delivery.ticket.clone()).collect();
    assert_eq!(source.ack(&tickets).await, Ok(vec![Standing::Settled; 4]));
    source.drain(Duration::from_secs(5)).await.expect("drained");
    let after = Bed::on(&server).await;
    assert_eq!(after.count(&queue).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f67_a_link_that_is_half_open_is_given_up_and_effects_happen_once() {
    let bed = require_service!(Bed::open().await);
    let server = require_service!(shared().await);
    let proxy = require_service!(Proxy::start(server.addr()).await);
    let (queue, database, handler) = (unique("half"), InboxDatabase::default(), Arc::<Stumbling>::default());
    bed.queue_with(&queue, single()).await;
    let config =
        RabbitmqConfig { heartbeat_secs: 5, ..RabbitmqConfig::new(&format!("amqp://{}", proxy.addr())) };
    let source = Arc::new(RabbitmqSource::start(&config, &plan(&queue, 1)).expect("valid"));
    let member = consumer(source, &database, &handler, 1);
    publish_all(&bed, &queue, &(0..100).map(|n| numbered(n, 3)).collect::<Vec<_>>()).await;
    until(async || database.tables().effects.len() >= 100).await;
    proxy.half_open().await;
    publish_all(&bed, &queue, &(100..200).map(|n| numbered(n, 3)).collect::<Vec<_>>()).await;
    // Another member is there; it gets what the first one does not hear of, once the broker misses it.
    let other = Arc::new(RabbitmqSource::start(&bed.config(), &plan(&queue, 2)).expect("valid"));
    let other = consumer(other, &database, &handler, 2);
    until(async || database.tables().effects.len() >= 200).await;
    proxy.pass().await;
    other.drain().await;
    publish_all(&bed, &queue, &(200..250).map(|n| numbered(n, 3)).collect::<Vec<_>>()).await;
    until(async || database.tables().effects.len() >= 250).await;
    member.drain().await;
    let by_key = effects(&database);
    assert!(by_key.values().all(|ids| ids.is_sorted()));
    let done: Vec<_> = by_key.into_values().flatten().collect();
    assert_eq!((done.len(), done.iter().collect::<BTreeSet<_>>().len()), (250, 250));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f45_what_comes_back_too_often_is_in_the_dead_letter_queue_and_not_gone() {
    let bed = require_service!(Bed::open().await);
    let (queue, dead) = (unique("limited"), bed.queue().await);
    let text = |text: &str| AMQPValue::LongString(text.into());
    let more = [
        ("x-single-active-consumer", AMQPValue::Boolean(true)),
        ("x-delivery-limit", AMQPValue::LongInt(2)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(&dead)),
    ];
    bed.queue_with(&queue, quorum(&more)).await;
    publish_all(&bed, &queue, &[numbered(1, 1)]).await;
    for death in 1..=3 {
        let source = RabbitmqSource::start(&bed.config(), &plan(&queue, death)).expect("valid");
        let taken = take(&source, 1, &mut Vec::new()).await;
        assert_eq!(taken[0].redelivery, u32::try_from(death - 1).ok());
        source.freeze().await;
    }
    bed.until_holds(&dead, 1).await;
    assert_eq!(bed.take_ids(&dead).await, ["m00001"]);
}

/// A queue has no places, so a message without an id has no identity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f72_messages_without_an_id_stop_the_consumer_and_stay_in_the_queue() {
    let bed = require_service!(Bed::open().await);
    let (queue, database, handler) = (unique("bare"), InboxDatabase::default(), Arc::<Stumbling>::default());
    bed.queue_with(&queue, single()).await;
    let bare = |n| posthaste_testkit::conformance::source::Publication { id: None, ..numbered(n, 1) };
    publish_all(&bed, &queue, &(1..=20).map(bare).collect::<Vec<_>>()).await;
    let source = Arc::new(
        RabbitmqSource::start(&bed.config(), &GroupMember { in_hand_max: 50, ..plan(&queue, 1) })
            .expect("valid"),
    );
    let mut member = consumer(source, &database, &handler, 1);
    let why = member.failed().await;
    assert!(why.contains("no identity"), "{why}");
    drop(member);
    bed.until_holds(&queue, 20).await;
    assert!(database.tables().effects.is_empty());
}
