//! What a seed stands for: sizes, settings, and which faults are about.

use crate::faults::{Dice, Odds};
use posthaste::consumer::settings::DependencyPauses;
use posthaste::consumer::store::ConsumerRetention;
use posthaste::consumer::{ConsumerRetry, ConsumerSettings, OnDead, Order, Unmatched};
use posthaste::retry::RetryPolicy;
use std::time::Duration;

/// One kind of act of chaos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mishap {
    /// A member dies.
    Kill,
    /// A member loses its partitions and does not know it.
    Zombie,
    /// A member is drained, and another one comes.
    Leave,
    /// The database is out of reach.
    Outage,
    /// The database restarts.
    Restart,
    /// Somebody keeps a copy of the database.
    Snapshot,
    /// The database is put back to that copy.
    Restore,
    /// All marks are older than they are kept.
    Age,
    /// All members die, and somebody moves the broker's positions.
    Meddle,
    /// The dependency is away.
    Api,
    /// An operator pauses the consumer.
    Pause,
    /// An operator replays, discards, seeks or repeats.
    Operate,
}

/// A scenario.
#[derive(Debug, Clone)]
pub(super) struct ConsumerScenario {
    pub(super) members: usize,
    pub(super) partitions: u32,
    pub(super) keys: usize,
    pub(super) messages: usize,
    /// Pause between two messages, at most.
    pub(super) pace: Duration,
    pub(super) settings: ConsumerSettings,
    pub(super) order: Order,
    pub(super) unmatched: Unmatched,
    pub(super) odds: Odds,
    pub(super) handler_latency: Duration,
    pub(super) chaos_pause: Duration,
    /// Messages that fail, and how many of a hundred.
    pub(super) bad: u64,
    /// One message kills its process.
    pub(super) killer: bool,
    /// The producer sends messages again.
    pub(super) copies: bool,
    acts: Vec<Mishap>,
}

impl ConsumerScenario {
    /// The scenario of these dice.
    pub(super) fn throw(dice: &mut Dice) -> Self {
        let calm = dice.happens(0.1);
        let mut acts = Vec::new();
        let mut may = |act: &[Mishap], odds: f64| {
            if !calm && dice.happens(odds) {
                acts.extend_from_slice(act);
            }
        };
        may(&[Mishap::Kill, Mishap::Kill], 0.5);
        may(&[Mishap::Leave], 0.3);
        may(&[Mishap::Outage], 0.4);
        may(&[Mishap::Restart], 0.3);
        may(&[Mishap::Snapshot, Mishap::Snapshot, Mishap::Restore], 0.25);
        may(&[Mishap::Meddle], 0.15);
        may(&[Mishap::Api], 0.3);
        may(&[Mishap::Pause], 0.2);
        // Marks that are purged protect from nothing that comes again: not from a zombie that is older than
        // they were kept, a producer's copy, or an operator who goes back.
        let ages = !calm && dice.happens(0.3);
        if ages {
            acts.push(Mishap::Age);
        } else {
            let mut may = |act: &[Mishap], odds: f64| {
                if !calm && dice.happens(odds) {
                    acts.extend_from_slice(act);
                }
            };
            may(&[Mishap::Zombie, Mishap::Zombie], 0.5);
            may(&[Mishap::Operate, Mishap::Operate, Mishap::Operate], 0.5);
        }
        let errors = |odds: f64, on: bool| if on { odds } else { 0.0 };
        let store_errors = !calm && dice.happens(0.4);
        let odds = Odds {
            latency_max: Duration::from_micros(dice.between(0, 8_000)),
            refuse: errors(0.03, store_errors),
            do_then_fail: errors(0.04, store_errors),
            ..Odds::default()
        };
        let settings = settings(dice);
        settings.check().expect("the settings of a scenario agree with each other");
        let killer = !calm && dice.happens(0.15);
        Self {
            members: dice.index(3) + 1,
            partitions: u32::try_from(dice.between(1, 4)).expect("small"),
            keys: dice.index(12) + 1,
            messages: usize::try_from(dice.between(30, 200)).expect("small"),
            pace: Duration::from_millis(dice.between(1, 150)),
            settings,
            order: [Order::Key, Order::Key, Order::Partition, Order::None][dice.index(4)],
            unmatched: if dice.happens(0.5) { Unmatched::Skip } else { Unmatched::Dead },
            odds,
            handler_latency: dice.up_to(Duration::from_millis(20)),
            chaos_pause: Duration::from_millis(dice.between(200, 2_000)),
            bad: if calm || dice.happens(0.3) { 0 } else { dice.between(5, 50) },
            killer,
            copies: !ages && dice.happens(0.5),
            acts,
        }
    }

    pub(super) fn acts(&self) -> Vec<Mishap> {
        self.acts.clone()
    }

    pub(super) fn has(&self, act: Mishap) -> bool {
        self.acts.contains(&act)
    }
}

fn settings(dice: &mut Dice) -> ConsumerSettings {
    let batch_max = usize::try_from(dice.between(1, 16)).expect("small");
    let then = RetryPolicy { max_attempts: 5, initial_ms: 300, max_ms: 1_000, ..RetryPolicy::default() };
    ConsumerSettings {
        retry: ConsumerRetry {
            delays_ms: vec![dice.between(20, 200), dice.between(20, 2_000)],
            then: dice.happens(0.5).then_some(then),
        },
        on_dead: if dice.happens(0.4) { OnDead::Hold } else { OnDead::Continue },
        handler_timeout_ms: 300,
        batch_max,
        transactions_max: dice.index(4) + 1,
        in_hand_max: batch_max * (dice.index(8) + 1),
        memory_wait_max_ms: dice.between(50, 1_500),
        deferred_max: if dice.happens(0.2) { dice.between(2, 8) } else { 1_000 },
        retention: ConsumerRetention { marks_days: 14, dead_letter_days: 0 },
        handover_wait_ms: 500,
        dependencies: [("api".to_owned(), DependencyPauses { initial_ms: 100, max_ms: 1_000 })].into(),
        ..ConsumerSettings::default()
    }
}
