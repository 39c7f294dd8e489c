//! The suite of tuning: what operators lay over `[relay]` is judged, kept, seen by every heartbeat, and ends.

use async_trait::async_trait;
use posthaste::admin::{
    Actor, Admin, AuditFilter, Control, ControlTarget, Ends, InForce, RewindTo, Tunable, TuneAct,
};
use posthaste::relay::RelaySettings;
use posthaste::route::Filter;
use posthaste::store::{JoinPlan, LaneId, SinkPlan, StartAt, Store};
use std::sync::Arc;
use std::time::Duration;

/// The cases, by name.
pub mod cases {
    pub use super::{
        a_pause_ends_by_itself_and_says_who_set_it, a_tuning_reaches_every_roll_and_is_cleared,
        what_does_not_fit_is_refused, what_is_written_by_hand_hurts_nobody, who_rewound_a_sink_is_known,
    };
}

/// An outbox, fresh for each case.
#[async_trait]
pub trait TuningFixture: Send + Sync {
    /// For acting on it.
    async fn admin(&self) -> Arc<dyn Admin>;
    /// The relay's view; it has not joined yet.
    async fn store(&self) -> Arc<dyn Store>;
    /// Everything that was set ended a second ago.
    async fn end_all(&self);
    /// A row that somebody writes by hand, for good: a setting, and its value as JSON.
    async fn write(&self, setting: &str, json: &str);
}

fn actor() -> Actor {
    Actor::new("bo", "busy")
}

fn set(values: &[(Tunable, u64)], ends: Ends) -> TuneAct {
    TuneAct::Set { values: values.to_vec(), ends, file: Box::default() }
}

const HOUR: Ends = Ends::In(Duration::from_secs(3_600));

async fn joined(fixture: &impl TuningFixture) -> Arc<dyn Store> {
    let store = fixture.store().await;
    let (relay, routes, lease_ttl) = ("a".into(), String::new(), Duration::from_secs(30));
    let sink = SinkPlan { name: "s".into(), filter: Filter::Everything, start_at: StartAt::default() };
    let plan = JoinPlan { relay, sinks: vec![sink], routes, lanes: Some(1), lease_ttl };
    store.join(&plan).await.expect("the relay joins");
    store
}

async fn rolled(store: &dyn Store) -> InForce {
    let tuning = store.roll(&[]).await.expect("the store answers").controls.tuning;
    InForce::new(&RelaySettings::default(), &tuning)
}

/// One act leaves the others as they are, and each says whose it is.
pub async fn a_tuning_reaches_every_roll_and_is_cleared(fixture: &impl TuningFixture) {
    let (admin, store) = (fixture.admin().await, joined(fixture).await);
    assert!(admin.tuning().await.expect("a look").is_empty());
    let now = store.roll(&[]).await.expect("the store answers").now;
    let until = admin.tune(&set(&[(Tunable::PollMax, 700), (Tunable::DueEvents, 60)], HOUR), &actor()).await;
    let until = until.expect("it is set").expect("it ends");
    assert!((3_500.0..3_700.0).contains(&until.seconds_since(now)), "{until:?}");
    let later = Actor::new("ann", "slow disk");
    admin.tune(&set(&[(Tunable::SettleInterval, 200)], HOUR), &later).await.expect("it is set");
    let found = rolled(&*store).await;
    let settings = &found.settings;
    assert_eq!((settings.poll_max_ms, settings.due_events_max, settings.settle_interval_ms), (700, 60, 200));
    let by = found.tuned(Tunable::PollMax).cloned().flatten().expect("somebody");
    assert_eq!((&*by.actor, &*by.reason, by.until), ("bo", "busy", Some(until)));
    assert_eq!(found.tuned(Tunable::SettleInterval).cloned().flatten().expect("somebody").actor, "ann");
    assert_eq!(admin.tuning().await.expect("a look").len(), 3);
    admin.tune(&TuneAct::Clear(vec![Tunable::PollMax]), &actor()).await.expect("cleared");
    assert_eq!(rolled(&*store).await.tuned.len(), 2);
    admin.tune(&TuneAct::Clear(Vec::new()), &actor()).await.expect("cleared");
    assert_eq!(rolled(&*store).await.settings, RelaySettings::default());
    let lines = admin.audit_lines(&AuditFilter::default(), None, 10).await.expect("the audit");
    let actions: Vec<&str> = lines.iter().map(|line| line.action.as_str()).collect();
    assert_eq!(actions, ["untune", "untune", "tune", "tune"]);
    // What ended is not in force, and nothing is left of it.
    admin.tune(&set(&[(Tunable::PollMax, 700)], HOUR), &actor()).await.expect("it is set");
    fixture.end_all().await;
    assert_eq!(rolled(&*store).await, InForce::new(&RelaySettings::default(), &[]));
    assert!(admin.tuning().await.expect("a look").is_empty());
}

/// Refused with a code, and nothing is changed.
pub async fn what_does_not_fit_is_refused(fixture: &impl TuningFixture) {
    let (admin, store) = (fixture.admin().await, joined(fixture).await);
    let past = Ends::At(store.roll(&[]).await.expect("the store answers").now);
    let cases = [
        (set(&[(Tunable::PollMax, 50_001)], HOUR), "admin.bad_tuning"),
        (set(&[(Tunable::PollMax, 600), (Tunable::PageEvents, 8_193)], HOUR), "admin.bad_tuning"),
        (set(&[], HOUR), "admin.bad_tuning"),
        (set(&[(Tunable::PollMax, 600)], past), "admin.bad_end"),
    ];
    for (act, code) in cases {
        assert_eq!(admin.tune(&act, &actor()).await.expect_err("refused").code(), code, "{act:?}");
    }
    let nobody = admin.tune(&set(&[(Tunable::PollMax, 600)], HOUR), &Actor::new("", "x")).await;
    assert_eq!(nobody.expect_err("refused").code(), "admin.actor_missing");
    assert!(rolled(&*store).await.tuned.is_empty());
    assert!(admin.audit_lines(&AuditFilter::default(), None, 10).await.expect("the audit").is_empty());
}

/// Rows of another version, and rows that are no settings at all: the heartbeat goes on, the rest holds.
pub async fn what_is_written_by_hand_hurts_nobody(fixture: &impl TuningFixture) {
    let (admin, store) = (fixture.admin().await, joined(fixture).await);
    // 1e400 is a number of PostgreSQL's, and of nobody else.
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let odd = ["\"soon\"", "-1", "1e300", "1e400", "{\"a\": [1]}", "null", "0.5", &deep];
    for (n, json) in odd.iter().enumerate() {
        fixture.write(&format!("other_{n}"), json).await;
    }
    fixture.write("poll_min_ms", "99999999").await;
    admin.tune(&set(&[(Tunable::PollMax, 700)], HOUR), &actor()).await.expect("it is set");
    let found = rolled(&*store).await;
    assert_eq!((found.settings.poll_max_ms, found.settings.poll_min_ms), (700, 3));
    assert_eq!(found.ignored.len(), odd.len() + 1, "{:?}", found.ignored);
    admin.tune(&TuneAct::Clear(Vec::new()), &actor()).await.expect("cleared");
    assert!(admin.tuning().await.expect("a look").is_empty());
}

/// Who paused a route, why and until when; and that it goes on by itself.
pub async fn a_pause_ends_by_itself_and_says_who_set_it(fixture: &impl TuningFixture) {
    let (admin, store) = (fixture.admin().await, joined(fixture).await);
    let route = ControlTarget::Route("r".to_owned());
    admin.control_until(&route, &Control::Pause, Some(HOUR), &actor()).await.expect("paused");
    let paused = admin.status().await.expect("a look").paused_routes;
    let by = paused[0].set_by.as_ref().expect("somebody");
    assert_eq!((&*paused[0].route, &*by.actor, &*by.reason), ("r", "bo", "busy"));
    let controls = store.roll(&[]).await.expect("the store answers").controls;
    assert_eq!((&controls.paused_routes[..], &controls.set_by[0].1), (&["r".to_owned()][..], by));
    assert!(by.until.is_some());
    fixture.end_all().await;
    assert!(admin.status().await.expect("a look").paused_routes.is_empty());
    assert!(store.roll(&[]).await.expect("the store answers").controls.paused_routes.is_empty());
}

/// Whoever lost a lane to an operator hears of them, and nobody else does.
pub async fn who_rewound_a_sink_is_known(fixture: &impl TuningFixture) {
    let (admin, store) = (fixture.admin().await, joined(fixture).await);
    let lane = LaneId { sink: "s".into(), lane: 0 };
    let take = async || store.take(&lane).await.expect("an answer").expect("it is free").epoch();
    let before = take().await;
    let known = async |epoch: i64| store.taken_by_hand(&lane, epoch).await.expect("an answer");
    assert_eq!(known(before).await, None, "nobody did anything");
    admin.rewind("s", RewindTo::Earliest, &actor()).await.expect("rewound");
    let act = known(before).await.expect("somebody");
    assert_eq!(act.to_string(), "rewound by bo: \"busy\"");
    let other = LaneId { sink: "t".into(), lane: 0 };
    assert_eq!(store.taken_by_hand(&other, before).await.expect("an answer"), None);
    let after = take().await;
    assert!(after > before);
    assert_eq!(known(after).await, None, "a lane that was taken since then");
}

/// Runs the suite of tuning: `tuning_suite!(module_name, async_fn_that_makes_a_fixture)`.
#[macro_export]
macro_rules! tuning_suite {
    ($name:ident, $make:expr) => {
        mod $name {
            use super::*;
            $crate::tuning_suite! { @cases $make,
                a_tuning_reaches_every_roll_and_is_cleared
                what_does_not_fit_is_refused
                what_is_written_by_hand_hurts_nobody
                a_pause_ends_by_itself_and_says_who_set_it
                who_rewound_a_sink_is_known
            }
        }
    };
    (@cases $make:expr, $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                let Some(fixture) = $make().await else { return };
                $crate::tuning::cases::$case(&fixture).await;
            }
        )*
    };
}
