//! The relays: the production engine, each with its own connection and its own faults.

use super::world::{SimulatedSink, World, lock};
use crate::faults::{Dice, Faults, FaultyStore, Odds, RecordingSink};
use async_trait::async_trait;
use posthaste::clock::SimulatedClock;
use posthaste::event::Limits;
use posthaste::lifecycle::ClassOverrides;
use posthaste::relay::{DrainOutcome, RelayHandle, RelayPlan, SinkEntry, start};
use posthaste::sink::{Capabilities, Message, Sink, Verdict};
use posthaste::store::{StartAt, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// One running relay.
struct Running {
    name: Arc<str>,
    handle: RelayHandle,
    store_faults: Faults,
    sink_faults: Faults,
    store: Arc<dyn Store>,
}

/// A berth of the fleet: a relay, or the time when the next one starts.
enum Berth {
    Running(Box<Running>),
    Empty { until: Instant },
}

/// All relays.
pub(super) struct Fleet {
    world: Arc<World>,
    dice: Dice,
    berths: Vec<Berth>,
    started: u64,
    /// Hosts that vanished: their connections were never closed.
    vanished: Vec<Arc<dyn Store>>,
    deaths: mpsc::UnboundedReceiver<Arc<str>>,
    faulty: bool,
}

impl Fleet {
    pub(super) fn new(world: &Arc<World>, dice: Dice, deaths: mpsc::UnboundedReceiver<Arc<str>>) -> Self {
        let now = Instant::now();
        Self {
            berths: (0..world.scenario.relays).map(|_| Berth::Empty { until: now }).collect(),
            world: Arc::clone(world),
            dice,
            started: 0,
            vanished: Vec::new(),
            deaths,
            faulty: true,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.berths.len()
    }

    /// Starts a relay in every berth whose time has come.
    pub(super) async fn start_due(&mut self) {
        let now = Instant::now();
        for berth in 0..self.berths.len() {
            if matches!(self.berths[berth], Berth::Empty { until } if until <= now) {
                self.berths[berth] = Berth::Running(Box::new(self.launch(berth).await));
            }
        }
    }

    /// When the next one starts, if one is to.
    pub(super) fn next_start(&self) -> Option<Instant> {
        let until = |berth: &Berth| if let Berth::Empty { until } = berth { Some(*until) } else { None };
        self.berths.iter().filter_map(until).min()
    }

    /// Resolves when an event has killed a relay, and buries that relay.
    pub(super) async fn poisoning(&mut self) {
        if let Some(name) = self.deaths.recv().await
            && let Some(berth) = self.find(&name)
        {
            let back = self.world.tempo.wait(self.dice.up_to(Duration::from_millis(500)));
            self.world.note(format_args!("{name} is killed by an event"));
            self.kill(berth, back);
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.berths
            .iter()
            .position(|berth| matches!(berth, Berth::Running(running) if *running.name == *name))
    }

    async fn launch(&mut self, berth: usize) -> Running {
        self.started += 1;
        let name: Arc<str> = format!("relay-{berth}.{}", self.started).into();
        let scenario = &self.world.scenario;
        let odds = |odds: Odds, faulty| match faulty {
            true => odds,
            false => Odds { latency_max: odds.latency_max, ..Odds::default() },
        };
        let store_faults = Faults::scripted(self.dice.fork(), odds(scenario.store_odds, self.faulty));
        let sink_faults = Faults::scripted(self.dice.fork(), odds(scenario.sink_odds, self.faulty));
        let store = self.world.database.store().await;
        let dice = &mut self.dice;
        let sink = |place: &Arc<SimulatedSink>| {
            let sink = RecordingSink::new(&place.broker, &name, scenario.ordering)
                .with_latency(dice.fork(), scenario.sink_latency)
                .with_faults(sink_faults.clone());
            let witness = Witness {
                inner: sink,
                world: Arc::clone(&self.world),
                place: Arc::clone(place),
                relay: Arc::clone(&name),
            };
            SinkEntry {
                name: Arc::clone(&place.name),
                sink: Arc::new(witness),
                start_at: StartAt::Earliest,
                classes: ClassOverrides::new(),
            }
        };
        let plan = RelayPlan {
            host: "host".into(),
            outbox: "simulated".into(),
            service: "simulation".into(),
            relay: Arc::clone(&name),
            store: Arc::new(FaultyStore::new(Arc::clone(&store), store_faults.clone())),
            sinks: self.world.places.iter().map(sink).collect(),
            routes: scenario.routes(),
            limits: Limits::default(),
            lanes: Some(scenario.lanes),
        };
        // Nothing is reloaded, so the senders may go.
        let (_, settings) = watch::channel(scenario.settings.clone());
        let (_, routes) = watch::channel(scenario.routes());
        let clock = Arc::new(SimulatedClock::new(self.dice.bits()));
        self.world.note(format_args!("{name} starts"));
        Running { handle: start(plan, settings, routes, clock), name, store_faults, sink_faults, store }
    }

    /// The process dies: its tasks are gone at once, its connections with them.
    pub(super) fn kill(&mut self, berth: usize, back_after: Duration) {
        if let Some(running) = self.empty(berth, back_after) {
            self.world.note(format_args!("{} is killed", running.name));
            self.world.database.kill(&running.name);
        }
    }

    /// The host vanishes: its tasks are gone, its connections seem to be there.
    pub(super) fn vanish(&mut self, berth: usize, back_after: Duration) {
        if let Some(running) = self.empty(berth, back_after) {
            self.world.note(format_args!("{} vanishes", running.name));
            self.vanished.push(running.store);
        }
    }

    fn empty(&mut self, berth: usize, back_after: Duration) -> Option<Running> {
        let until = Instant::now() + back_after;
        match std::mem::replace(&mut self.berths[berth], Berth::Empty { until }) {
            Berth::Running(running) => Some(*running),
            Berth::Empty { until } => {
                self.berths[berth] = Berth::Empty { until };
                None
            }
        }
    }

    /// Stops every call of a relay at its next step, for so long.
    pub(super) fn freeze(&self, berth: usize, length: Duration) {
        let Berth::Running(running) = &self.berths[berth] else { return };
        self.world.note(format_args!("{} freezes for {length:?}", running.name));
        running.store_faults.freeze();
        running.sink_faults.freeze();
        let (store, sink) = (running.store_faults.clone(), running.sink_faults.clone());
        let (world, name) = (Arc::clone(&self.world), Arc::clone(&running.name));
        tokio::spawn(async move {
            tokio::time::sleep(length).await; // pace
            world.note(format_args!("{name} thaws"));
            store.thaw();
            sink.thaw();
        });
    }

    /// Stops a relay the proper way.
    pub(super) async fn drain(
        &mut self,
        berth: usize,
        back_after: Duration,
    ) -> Option<(Arc<str>, DrainOutcome)> {
        let running = self.empty(berth, back_after)?;
        self.world.note(format_args!("{} drains", running.name));
        let outcome = running.handle.drain().await;
        self.world.note(format_args!("{} has drained: {outcome:?}", running.name));
        Some((running.name, outcome))
    }

    /// No more faults, no frozen calls, and nobody is missing.
    pub(super) async fn heal(&mut self) {
        self.faulty = false;
        for berth in &mut self.berths {
            match berth {
                Berth::Running(running) => {
                    running.store_faults.heal();
                    running.sink_faults.heal();
                }
                Berth::Empty { until } => *until = Instant::now(),
            }
        }
        self.start_due().await;
    }

    /// Those that run.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        let name = |berth: &Berth| match berth {
            Berth::Running(running) => Some(Arc::clone(&running.name)),
            Berth::Empty { .. } => None,
        };
        self.berths.iter().filter_map(name).collect()
    }

    /// What the relays say of themselves when it is not good.
    pub(super) fn complaints(&self) -> Vec<String> {
        let complaint = |berth: &Berth| match berth {
            Berth::Running(running) => {
                let health = running.handle.health();
                (!health.ready).then(|| format!("{} says: {}", running.name, health.why))
            }
            Berth::Empty { .. } => None,
        };
        self.berths.iter().filter_map(complaint).collect()
    }
}

/// Stands between a relay and its sink, and counts what the relay was told.
struct Witness {
    inner: RecordingSink,
    world: Arc<World>,
    place: Arc<SimulatedSink>,
    relay: Arc<str>,
}

#[async_trait]
impl Sink for Witness {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Verdict> {
        let seqs: Vec<i64> = messages.iter().map(|message| message.stored.seq).collect();
        self.world.detail(|| format!("  {} publishes {seqs:?} to {}", self.relay, self.place.name));
        for message in messages {
            *lock(&self.place.tally).calls.entry(message.stored.event.id).or_insert(0) += 1;
        }
        let verdicts = self.inner.publish(messages).await;
        self.world.detail(|| format!("  {} hears of {seqs:?}: {verdicts:?}", self.relay));
        let mut tally = lock(&self.place.tally);
        for (message, verdict) in messages.iter().zip(&verdicts) {
            if *verdict == Verdict::Delivered {
                *tally.heard.entry(message.stored.event.id).or_insert(0) += 1;
            }
        }
        verdicts
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
