//! Crash tests: the real process dies by a signal at every `CRASH(name)` note, and a fresh one finishes.
//!
//! Each point is visited twice: once the relay kills itself there with SIGKILL, once it kills the
//! database's postmaster there and has to live on. From outside, the guarantees must hold: every
//! committed event delivered or dead, first deliveries of a key in order, a clean shutdown at the end.
//!
//! The list below is complete by force: [`every_crash_note_has_a_point_and_a_test`] reads the sources.

mod adopt;
mod adopt_poison;
#[cfg(feature = "sqlite")]
mod consume;
/// Where `tests/consume` lets a consumer on PostgreSQL die.
#[path = "../consume/points.rs"]
mod consume_points;
/// Where `tests/gateway` lets a gateway die.
#[path = "../gateway/points.rs"]
mod gateway_points;
mod jobs;
#[cfg(feature = "sqlite")]
mod local;
mod migrate;
mod points;
mod rig;
#[cfg(feature = "sqlite")]
mod sqlite;
#[path = "../topology/points.rs"]
mod topology_points;

use posthaste_testkit::require_service;
use posthaste_testkit::services::{Postgres, PostgresOptions, Version};
use rig::{Rig, Way};

/// Every crash point, the visit at which to die, and the way that leads there.
const POINTS: [(&str, u32, Way); 11] = [
    ("take.before_commit", 1, Way::Plain),
    ("take.after_commit", 1, Way::Plain),
    ("publish.acknowledged", 2, Way::Plain),
    ("publish.in_hand", 1, Way::Careful),
    ("publish.poison", 1, Way::Poison),
    ("settle.before", 2, Way::Plain),
    ("settle.uncommitted", 1, Way::Dead),
    ("settle.after", 2, Way::Plain),
    ("sweep.turned", 1, Way::Sweep),
    ("sweep.before_commit", 1, Way::Sweep),
    ("sweep.truncated", 1, Way::Sweep),
];

macro_rules! crash_tests {
    ($($name:ident = $index:literal;)*) => {
        mod relay_dies_at {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::relay_dies(super::POINTS[$index]).await;
                }
            )*
        }
        mod postgres_dies_at {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    super::postgres_dies(super::POINTS[$index]).await;
                }
            )*
        }
    };
}

crash_tests! {
    take_before_commit = 0;
    take_after_commit = 1;
    publish_acknowledged = 2;
    publish_in_hand = 3;
    publish_poison = 4;
    settle_before = 5;
    settle_uncommitted = 6;
    settle_after = 7;
    sweep_turned = 8;
    sweep_before_commit = 9;
    sweep_truncated = 10;
}

/// The relay is killed at the point; a fresh one finishes.
async fn relay_dies((point, visit, way): (&str, u32, Way)) {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let mut rig = Rig::set(server, way).await;
    rig.prepare(way).await;
    let died = rig.run_until_dead(&format!("{point}@{visit}")).await;
    assert_eq!(died, Some(9), "the relay died of SIGKILL at {point}");
    rig.finish(point).await;
}

/// The database is killed at the point, and comes back; the same relay finishes, unless its own event
/// is what kills it.
async fn postgres_dies((point, visit, way): (&str, u32, Way)) {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let mut rig = Rig::set(server, way).await;
    rig.prepare(way).await;
    rig.run_through_server_crash(&format!("{point}@{visit}")).await;
    rig.finish(point).await;
}

/// An event that kills its relay again and again ends as a dead letter; the rest goes on (F21).
#[tokio::test(flavor = "multi_thread")]
async fn f21_an_event_that_kills_its_relay_ends_as_a_dead_letter() {
    let server = require_service!(Postgres::start(Version::V15, &PostgresOptions::default()).await);
    let mut rig = Rig::set(server, Way::Poison).await;
    rig.prepare(Way::Poison).await;
    let mut deaths = 0;
    while rig.poison_is_alive().await {
        assert!(deaths < 15, "the relay dies for ever");
        // SIGABRT: the event itself kills the process, no crash point is armed.
        assert_eq!(rig.run_until_dead_or_buried().await, Some(6));
        deaths += 1;
    }
    assert!(deaths >= 3, "care takes a few deaths: {deaths}");
    rig.finish("publish.poison").await;
}
