//! The process dies at each crash point of the consumer, and a fresh one finishes.

use crate::points::{POINTS, Way};
use crate::rig::Rig;
use posthaste_testkit::require_service;
use std::os::unix::process::ExitStatusExt;

/// A message that fails is deferred at once, and is due soon. Small batches make many visits.
const SETTINGS: &str =
    "batch_max = 8\nretry = { delays_ms = [], then = { max_attempts = 5, initial_ms = 50, max_ms = 100 } }";

macro_rules! deaths {
    ($($name:ident = $index:literal;)*) => {
        /// The one that is left is a message that kills: `poison.rs`.
        const _: () = assert!([$($index),*].len() + 1 == POINTS.len(), "a crash point has no test");
        mod process_dies_at {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::dies(super::POINTS[$index]).await;
                }
            )*
        }
    };
}

deaths! {
    started = 0;
    taken = 1;
    admitted = 2;
    before_commit = 3;
    committed = 4;
    saved = 5;
    deferred = 6;
    buried = 7;
    redriven = 8;
    deferred_done = 9;
    revoked = 10;
}

async fn dies((point, visit, way): (&str, u32, Way)) {
    let rig = require_service!(Rig::set(SETTINGS).await);
    prepare(&rig, way).await;
    let mut member = rig.start_to_die(&format!("{point}@{visit}"));
    let other = if way == Way::Leave {
        rig.until("select count(*) from posthaste.inbox_partitions where owner is not null", 2).await;
        Some(rig.start())
    } else {
        None
    };
    assert_eq!(member.ends().await.signal(), Some(9), "it died of SIGKILL at {point}");
    rig.check(&format!("right after {point}")).await;
    left_behind(&rig, point).await;
    let member = other.unwrap_or_else(|| rig.start());
    rig.publish(40, "order").await;
    if way == Way::Dead {
        // The letter's event was in the outbox, and whoever relays next publishes it.
        rig.until("select count(*) from posthaste.lanes_now where position > 0", 1).await;
    }
    rig.finish(member, &format!("a while after {point}")).await;
    let letters = rig.count("select count(*) from posthaste.inbox_dead_letters").await;
    assert_eq!(letters, i64::from(way == Way::Dead), "dead letters after {point}");
}

async fn prepare(rig: &Rig, way: Way) {
    rig.publish(40, "order").await;
    match way {
        Way::Plain | Way::Leave => rig.publish(120, "order").await,
        Way::Late => {
            rig.publish(6, "late").await;
            rig.publish(80, "order").await;
        }
        Way::Dead => {
            rig.publish(1, "reject").await;
            rig.publish(40, "order").await;
        }
        Way::Redrive => {
            rig.publish(1, "reject").await;
            let dead = rig.last();
            let member = rig.start();
            rig.until("select count(*) from posthaste.inbox_dead_letters", 1).await;
            rig.finish(member, "with a dead letter").await;
            rig.client.batch_execute("update trial.mood set fixed = true").await.expect("mended");
            rig.publish_again(dead, "reject").await;
        }
        Way::Poison => {}
    }
}

/// What a death at this point leaves, where only this point does.
async fn left_behind(rig: &Rig, point: &str) {
    let marks = rig.count("select count(*) from posthaste.inbox").await;
    let positions = rig.count("select count(position) from posthaste.inbox_partitions").await;
    let letters = rig.count("select count(*) from posthaste.inbox_dead_letters").await;
    let deferred = rig.count("select count(*) from posthaste.inbox_deferred").await;
    match point {
        "consume.started" => {
            let rows = rig.count("select count(*) from posthaste.inbox_partitions").await;
            assert_eq!((rows > 0, positions, marks), (true, 0, 0), "rows without a position");
        }
        "consume.taken" => assert_eq!(marks, 0, "nothing durable"),
        "consume.committed" => {
            let saved: i64 = rig.positions().await.values().sum();
            assert!(marks > saved, "marks ahead of the positions: {marks}, {saved}");
        }
        "consume.buried" => {
            let event = "select count(*) from posthaste.outbox where topic = 'orders.dead'";
            assert_eq!((letters, rig.count(event).await), (1, 1), "the letter and its event");
        }
        "consume.redriven" => assert_eq!((letters, deferred), (1, 0), "the letter as before"),
        "consume.deferred_done" => assert!(deferred > 0, "the row is still there"),
        _ => {}
    }
}

/// The store's crash points on the other sources: whatever the broker brings again meets the marks.
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
async fn dies_on(rig: &Rig, is_direct: bool, points: &[&str]) {
    let mut last = 0;
    for point in points {
        for (count, kind) in [(60, "order"), (4, "late")] {
            match is_direct {
                true => rig.publish(count, kind).await,
                false => rig.append(last + 1..=last + count, kind).await,
            }
            last += count;
        }
        let mut member = rig.start_to_die(&format!("{point}@2"));
        assert_eq!(member.ends().await.signal(), Some(9), "it died of SIGKILL at {point}");
        rig.check(&format!("right after {point}")).await;
    }
    let member = rig.start();
    rig.until("select count(*) from trial.effects", last.into()).await;
    rig.until("select 1 - least(count(*), 1) from posthaste.inbox_deferred", 1).await;
    rig.check("after all these deaths").await;
    assert_eq!(rig.count("select count(*) from posthaste.inbox_dead_letters").await, 0);
    member.stop().await;
}

#[cfg(any(feature = "nats", feature = "redis"))]
const OF_A_LOG: [&str; 4] = ["consume.admitted", "consume.committed", "consume.saved", "consume.deferred"];

#[cfg(feature = "nats")]
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_jetstream_dies_and_each_effect_happens_once() {
    use posthaste_testkit::services::{Nats, NatsOptions};
    let nats = require_service!(Nats::start(&NatsOptions::default()).await);
    let rig = require_service!(Rig::set_on_nats(&nats, SETTINGS).await);
    dies_on(&rig, true, &OF_A_LOG).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_redis_dies_and_each_effect_happens_once() {
    use posthaste_testkit::services::{Redis, RedisOptions};
    let server = require_service!(Redis::start(&RedisOptions::default()).await);
    let rig = require_service!(Rig::set_on_redis(&server, "", SETTINGS).await);
    dies_on(&rig, false, &OF_A_LOG).await;
}

#[cfg(feature = "rabbitmq")]
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_rabbitmq_dies_and_each_effect_happens_once() {
    let server = require_service!(posthaste_testkit::services::shared_rabbitmq().await);
    let rig = require_service!(Rig::set_on_rabbitmq(server, SETTINGS).await);
    dies_on(
        &rig,
        false,
        &["consume.admitted", "consume.before_commit", "consume.committed", "consume.deferred"],
    )
    .await;
}
