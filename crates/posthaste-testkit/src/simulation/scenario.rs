//! What a seed stands for: sizes, settings, and which faults are about.
//!
//! Every number is thrown from the seed, and most are small: bugs of order and settlement live where
//! pages hold three events and windows two pages. Not every fault is in every scenario; a run without
//! any is what shows that a guard does not depend on the faults' own repairs.

use super::ground::Tempo;
use crate::faults::{Dice, Odds};
use posthaste::relay::RelaySettings;
use posthaste::retry::RetryPolicy;
use posthaste::route::{OnDead, Pattern, Route, RouteTable};
use posthaste::sink::Ordering;
use std::time::Duration;

/// Which faults a scenario has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Troubles {
    /// Relays are killed, or vanish with their host, and come back.
    pub(super) kills: bool,
    /// Relays freeze longer than their leases and go on.
    pub(super) freezes: bool,
    /// The database server crashes.
    pub(super) crashes: bool,
    /// The store fails before or after the effect.
    pub(super) store_errors: bool,
    /// Sinks are out of reach.
    pub(super) outages: bool,
    /// Some destinations of a sink are.
    pub(super) closed_destinations: bool,
    /// Messages fail before or after the effect by the sink's fault, arrive twice, or are never answered.
    pub(super) publish_errors: bool,
    /// Single events fail, are rejected, or lose their acknowledgement.
    pub(super) bad_events: bool,
    /// One event kills every relay that publishes it.
    pub(super) poison: bool,
    /// Operators pause, replay and discard.
    pub(super) operators: bool,
    /// Relays are drained and started again.
    pub(super) restarts: bool,
    /// The application commits asynchronously.
    pub(super) asynchronous: bool,
}

impl Troubles {
    fn throw(dice: &mut Dice) -> Self {
        if dice.happens(0.1) {
            return Self::default();
        }
        // A calm fleet under a bad sink shows what settlement does without any hand-over.
        let fleet = if dice.happens(0.7) { 0.6 } else { 0.0 };
        Self {
            kills: dice.happens(fleet),
            freezes: dice.happens(fleet),
            crashes: dice.happens(fleet * 0.4),
            store_errors: dice.happens(fleet),
            outages: dice.happens(0.5),
            closed_destinations: dice.happens(0.4),
            publish_errors: dice.happens(0.4),
            bad_events: dice.happens(0.6),
            poison: dice.happens(fleet * 0.25),
            operators: dice.happens(0.4),
            restarts: dice.happens(fleet * 0.6),
            asynchronous: dice.happens(0.4),
        }
    }

    /// Whether every relay lives in peace: then nothing may be delivered twice for its sake.
    pub(super) fn spare_the_fleet(&self) -> bool {
        !(self.kills || self.freezes || self.crashes || self.store_errors || self.poison)
    }
}

/// A scenario.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) relays: usize,
    pub(super) lanes: u16,
    pub(super) keys: usize,
    pub(super) events: usize,
    pub(super) writers: usize,
    pub(super) sinks: Vec<String>,
    pub(super) ordering: Ordering,
    pub(super) on_dead: OnDead,
    pub(super) retry: RetryPolicy,
    pub(super) settings: RelaySettings,
    pub(super) store_odds: Odds,
    pub(super) sink_odds: Odds,
    pub(super) sink_latency: Duration,
    /// Pause between two acts of chaos, at most.
    pub(super) chaos_pause: Duration,
    /// Whether all relays are drained, and others started, before the backlog is gone.
    pub(super) drains_early: bool,
    /// How many events that wait behind a due one the store hands out with it.
    pub(super) run_max: usize,
    pub(super) troubles: Troubles,
}

impl Scenario {
    /// The scenario of these dice.
    pub(super) fn throw(dice: &mut Dice, tempo: Tempo) -> Self {
        let mut troubles = Troubles::throw(dice);
        let mut settings = settings(dice);
        if tempo == Tempo::Real {
            shorten(&mut settings);
            // A file has no server to crash.
            (troubles.crashes, troubles.asynchronous) = (false, false);
        }
        settings.check().expect("the settings of a scenario agree with each other");
        let errors = |odds: f64, on: bool| if on { odds } else { 0.0 };
        let store_odds = Odds {
            latency_max: Duration::from_micros(dice.between(0, 6_000)),
            refuse: errors(0.03, troubles.store_errors),
            do_then_fail: errors(0.04, troubles.store_errors),
            duplicate: errors(0.02, troubles.store_errors),
            drop_ack: 0.0,
        };
        let sink_odds = Odds {
            latency_max: Duration::ZERO,
            // Of each message, not of each call.
            refuse: errors(0.01, troubles.publish_errors),
            do_then_fail: errors(0.01, troubles.publish_errors),
            duplicate: errors(0.02, troubles.publish_errors),
            drop_ack: errors(0.005, troubles.publish_errors),
        };
        Self {
            relays: dice.index(3) + 1,
            lanes: u16::try_from(dice.between(1, 4)).expect("small"),
            keys: dice.index(20) + 1,
            events: usize::try_from(dice.between(50, 400)).expect("small"),
            writers: dice.index(6) + 1,
            sinks: (0..=usize::from(dice.happens(0.25))).map(|n| format!("sink-{n}")).collect(),
            ordering: [Ordering::None, Ordering::Call, Ordering::Overlap, Ordering::Overlap][dice.index(4)],
            on_dead: if dice.happens(0.3) { OnDead::Hold } else { OnDead::Continue },
            retry: RetryPolicy {
                max_attempts: u32::try_from(dice.between(2, 5)).expect("small"),
                initial_ms: dice.between(5, 60),
                max_ms: if tempo == Tempo::Real { 80 } else { 400 },
                ..RetryPolicy::default()
            },
            sink_latency: sink_latency(dice, &settings, tempo),
            settings,
            store_odds,
            sink_odds,
            chaos_pause: Duration::from_millis(dice.between(200, 2_000)),
            drains_early: dice.happens(0.3),
            run_max: if dice.happens(0.3) { 0 } else { dice.index(32) },
            troubles,
        }
    }

    /// The routes: all topics to all sinks, one route each, the topic as the destination.
    pub(super) fn routes(&self) -> RouteTable {
        let route = |sink: &String| Route {
            name: format!("route-{sink}").into(),
            topics: vec![Pattern::new("*")],
            on_dead: self.on_dead,
            retry: self.retry,
            ..Route::everything_to(sink)
        };
        RouteTable::new(self.sinks.iter().map(route).collect())
    }

    /// What one death of a lane's owner may send twice, at most.
    pub(super) fn window(&self) -> u64 {
        (self.settings.max_unsettled_events + self.settings.due_events_max) as u64
    }
}

/// So long that calls overlap, so short that a page of one key, sent one by one, fits into the timeout: a
/// sink that cannot answer in time has to say so itself. Real timers have a grain of a millisecond, so what
/// is shorter than some of them is nothing.
fn sink_latency(dice: &mut Dice, settings: &RelaySettings, tempo: Tempo) -> Duration {
    let fits = Duration::from_millis(settings.publish_timeout_ms) / 3;
    let each = fits / u32::try_from(settings.page_events_max).expect("small");
    let latency = dice.up_to(each.min(Duration::from_millis(20)));
    let is_too_short = tempo == Tempo::Real && each < Duration::from_millis(3);
    if is_too_short { Duration::ZERO } else { latency }
}

/// The same settings for real time: a lease of 400 ms, and the rest in proportion. Still long beside what a
/// call takes, or nothing but expiry would be tested.
fn shorten(settings: &mut RelaySettings) {
    settings.poll_max_ms = settings.poll_max_ms / 8 + settings.poll_min_ms;
    settings.poll_max_unwoken_ms = 50;
    settings.settle_interval_ms = settings.settle_interval_ms / 4 + 1;
    settings.lease_ttl_ms = 400;
    settings.heartbeat_ms /= 5;
    settings.publish_timeout_ms = (settings.publish_timeout_ms / 5).max(80);
    settings.sweep_interval_ms = 250;
    settings.breaker_initial_ms = 10;
    settings.breaker_max_ms = 60;
}

fn settings(dice: &mut Dice) -> RelaySettings {
    let page_events_max = if dice.happens(0.8) { dice.between(3, 20) } else { dice.between(20, 200) };
    let page_events_max = usize::try_from(page_events_max).expect("small");
    RelaySettings {
        page_events_max,
        page_bytes_max: if dice.happens(0.2) { 600 } else { 8 << 20 },
        max_unsettled_events: page_events_max * (dice.index(5) + 1),
        max_unsettled_bytes: if dice.happens(0.1) { 4_000 } else { 24 << 20 },
        poll_min_ms: 3,
        poll_max_ms: dice.between(50, 1_500),
        poll_max_unwoken_ms: 250,
        settle_interval_ms: dice.between(1, 40),
        lease_ttl_ms: 2_000,
        heartbeat_ms: dice.between(80, 250),
        publish_timeout_ms: dice.between(200, 1_000),
        drain_timeout_ms: 15_000,
        sweep_interval_ms: 2_000,
        calls_in_flight: dice.index(4) + 1,
        due_events_max: dice.index(24) + 1,
        breaker_initial_ms: 50,
        breaker_max_ms: 400,
        crash_limit: 3,
    }
}
