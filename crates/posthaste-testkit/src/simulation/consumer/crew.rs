//! The members: the production engine, each with its own connection and its own faults.

use super::scenario::Mishap;
use super::world::{CONSUMER, ConsumerWorld, GROUP, SimulatedHandler, TOPIC};
use crate::faults::{Dice, Faults, Odds};
use posthaste::clock::SimulatedClock;
use posthaste::consumer::{ConsumerHandle, ConsumerPlan, Filter, start};
use posthaste::relay::DrainOutcome;
use posthaste::source::StartFrom;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// One running member.
struct Mate {
    name: Arc<str>,
    handle: ConsumerHandle,
    faults: Faults,
}

/// A place in the crew: a member, or the time when the next one starts.
enum Bunk {
    Taken(Box<Mate>),
    Empty { until: Instant },
}

/// All members.
pub(super) struct Crew {
    world: Arc<ConsumerWorld>,
    dice: Dice,
    bunks: Vec<Bunk>,
    /// Members that lost their partitions, and when they end.
    zombies: Vec<(Mate, Instant)>,
    started: u64,
    deaths: mpsc::UnboundedReceiver<Arc<str>>,
    faulty: bool,
}

impl Crew {
    pub(super) fn new(
        world: &Arc<ConsumerWorld>,
        dice: Dice,
        deaths: mpsc::UnboundedReceiver<Arc<str>>,
    ) -> Self {
        let bunks = (0..world.scenario.members).map(|_| Bunk::Empty { until: Instant::now() }).collect();
        let (world, zombies) = (Arc::clone(world), Vec::new());
        Self { world, dice, bunks, zombies, started: 0, deaths, faulty: true }
    }

    pub(super) fn len(&self) -> usize {
        self.bunks.len()
    }

    /// Starts a member wherever the time has come, and ends zombies.
    pub(super) fn start_due(&mut self) {
        let now = Instant::now();
        self.zombies.retain(|(_, until)| *until > now);
        for bunk in 0..self.bunks.len() {
            if matches!(self.bunks[bunk], Bunk::Empty { until } if until <= now) {
                self.bunks[bunk] = Bunk::Taken(Box::new(self.launch(bunk)));
            }
        }
    }

    fn launch(&mut self, bunk: usize) -> Mate {
        self.started += 1;
        let name: Arc<str> = format!("member-{bunk}.{}", self.started).into();
        let scenario = &self.world.scenario;
        let odds = match self.faulty {
            true => scenario.odds,
            false => Odds { latency_max: scenario.odds.latency_max, ..Odds::default() },
        };
        let faults = Faults::scripted(self.dice.fork(), odds);
        let handler = SimulatedHandler { world: Arc::clone(&self.world), member: Arc::clone(&name) };
        let store = self.world.database.inbox(CONSUMER, Filter::types(["made", "needs"]), Arc::new(handler));
        let stall_limit = Duration::from_secs(30);
        let source = self.world.broker.join(GROUP, TOPIC, &name, StartFrom::Earliest, stall_limit);
        let plan = ConsumerPlan {
            member: Arc::clone(&name),
            unmatched: scenario.unmatched,
            order: scenario.order,
            ..ConsumerPlan::new(CONSUMER, Arc::new(source), Arc::new(store.with_faults(faults.clone())))
        };
        // Nothing is reloaded, so the sender may go.
        let (_, settings) = watch::channel(scenario.settings.clone());
        let clock = Arc::new(SimulatedClock::new(self.dice.bits()));
        self.world.note(format_args!("{name} starts"));
        Mate { handle: start(plan, settings, clock), name, faults }
    }

    /// Resolves when a message has killed a member, and buries that member.
    pub(super) async fn killing(&mut self) {
        let Some(name) = self.deaths.recv().await else { return std::future::pending().await };
        self.zombies.retain(|(mate, _)| mate.name != name);
        let of = |bunk: &Bunk| matches!(bunk, Bunk::Taken(mate) if mate.name == name);
        if let Some(bunk) = self.bunks.iter().position(of) {
            let back = self.dice.up_to(Duration::from_millis(500));
            self.kill(bunk, back);
        }
    }

    /// The process dies: its tasks are gone at once, its connections with them.
    pub(super) fn kill(&mut self, bunk: usize, back: Duration) {
        if let Some(mate) = self.empty(bunk, back) {
            self.world.note(format_args!("{} is killed", mate.name));
            self.world.broker.kill(GROUP, &mate.name);
        }
    }

    /// The broker gives its partitions to others; it goes on with what it has in hand, at once or later.
    pub(super) fn lose(&mut self, bunk: usize, length: Duration) {
        let Some(mate) = self.empty(bunk, Duration::ZERO) else { return };
        self.world.note(format_args!("{} loses its partitions and does not know", mate.name));
        self.world.broker.kill(GROUP, &mate.name);
        if self.dice.happens(0.6) {
            mate.faults.freeze();
            let faults = mate.faults.clone();
            super::later(self.dice.up_to(length), move || faults.thaw());
        }
        self.zombies.push((*mate, Instant::now() + length));
    }

    /// Stops a member the proper way.
    pub(super) async fn drain(&mut self, bunk: usize, back: Duration) -> Option<(Arc<str>, DrainOutcome)> {
        let mate = self.empty(bunk, back)?;
        self.world.note(format_args!("{} drains", mate.name));
        let outcome = mate.handle.drain().await;
        self.world.note(format_args!("{} has drained: {outcome:?}", mate.name));
        Some((mate.name, outcome))
    }

    pub(super) async fn drain_all(&mut self) -> Vec<(Arc<str>, DrainOutcome)> {
        let mut drained = Vec::new();
        for bunk in 0..self.bunks.len() {
            drained.extend(self.drain(bunk, Duration::from_secs(600)).await);
        }
        drained
    }

    fn empty(&mut self, bunk: usize, back: Duration) -> Option<Box<Mate>> {
        let until = Instant::now() + back;
        match std::mem::replace(&mut self.bunks[bunk], Bunk::Empty { until }) {
            Bunk::Taken(mate) => Some(mate),
            Bunk::Empty { until } => {
                self.bunks[bunk] = Bunk::Empty { until };
                None
            }
        }
    }

    /// No more faults, no zombies, and nobody is missing.
    pub(super) fn heal(&mut self) {
        self.faulty = false;
        self.zombies.clear();
        for bunk in &mut self.bunks {
            match bunk {
                Bunk::Taken(mate) => mate.faults.heal(),
                Bunk::Empty { until } => *until = Instant::now(),
            }
        }
        self.start_due();
    }

    /// What the members say of themselves when it is not good.
    pub(super) fn complaints(&self) -> Vec<String> {
        let complaint = |bunk: &Bunk| {
            let Bunk::Taken(mate) = bunk else { return None };
            let health = mate.handle.health();
            // One among many may have no partition.
            let idle = health.why.starts_with("no partition is assigned");
            (!health.ready && !idle).then(|| format!("{} says: {}", mate.name, health.why))
        };
        self.bunks.iter().filter_map(complaint).collect()
    }
}

impl ConsumerWorld {
    /// Whether members die. Then an innocent message may be in hand each time.
    pub(super) fn members_die(&self) -> bool {
        self.scenario.killer
            || [Mishap::Kill, Mishap::Zombie, Mishap::Meddle].into_iter().any(|act| self.scenario.has(act))
    }
}
