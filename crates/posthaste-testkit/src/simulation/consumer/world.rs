//! What all actors of a simulation share: the database, the broker, the handler, and what was published.

use super::super::world::lock;
use super::scenario::ConsumerScenario;
use crate::broker::{BrokerKind, MemoryBroker};
use crate::faults::Dice;
use crate::inbox::{InboxDatabase, MemoryHandler, MemoryTransaction, Tables};
use async_trait::async_trait;
use bytes::Bytes;
use posthaste::consumer::store::ConsumerControls;
use posthaste::consumer::{Failure, FailureKind, HandlerError, Message};
use posthaste::event::TYPE_HEADER;
use posthaste::source::Received;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

pub(super) const CONSUMER: &str = "billing";
pub(super) const GROUP: &str = "billing";
pub(super) const TOPIC: &str = "orders";

/// What becomes of one message in its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Character {
    Healthy,
    /// Its handler fails so often, then succeeds.
    Flaky(u32),
    /// Its commit fails so often, and the failure names nobody.
    FailsLate(u32),
    /// Its handler hangs so often, longer than it may.
    Hangs(u32),
    /// It needs the dependency.
    Needy,
    /// It always fails.
    Doomed,
    /// Its handler refuses it.
    Rejected,
    /// Its handler refuses it until somebody has mended it.
    Mended,
    /// It kills its process.
    Killer,
    /// No handler takes it.
    Unmatched,
}

/// A message that was published.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) fate: Character,
    message: Received,
}

/// What people and messages did, as far as the check needs to know.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) sent: BTreeMap<String, Sent>,
    /// How often a handler began with it.
    pub(super) runs: BTreeMap<String, u32>,
    failures: BTreeMap<String, u32>,
    pub(super) mended: BTreeSet<String>,
    /// Those that were a dead letter at some time.
    pub(super) died: BTreeSet<String>,
    pub(super) discarded: BTreeSet<String>,
    /// How often it was to be done again.
    pub(super) repeats: BTreeMap<String, usize>,
}

/// The whole simulation.
pub(super) struct ConsumerWorld {
    pub(super) scenario: ConsumerScenario,
    pub(super) database: InboxDatabase,
    pub(super) broker: MemoryBroker,
    pub(super) ledger: Mutex<Ledger>,
    snapshot: Mutex<Option<Tables>>,
    api: AtomicBool,
    dice: Mutex<Dice>,
    killed: mpsc::UnboundedSender<Arc<str>>,
    start: Instant,
    verbose: bool,
    history: Mutex<Vec<String>>,
    problems: Mutex<Vec<String>>,
}

impl ConsumerWorld {
    pub(super) fn new(
        scenario: ConsumerScenario,
        dice: Dice,
        killed: mpsc::UnboundedSender<Arc<str>>,
    ) -> Arc<Self> {
        let broker = MemoryBroker::new(BrokerKind::Log, 10_000);
        broker.declare(TOPIC, scenario.partitions);
        Arc::new(Self {
            scenario,
            database: InboxDatabase::default(),
            broker,
            ledger: Mutex::default(),
            snapshot: Mutex::default(),
            api: AtomicBool::new(true),
            dice: Mutex::new(dice),
            killed,
            start: Instant::now(),
            verbose: std::env::var_os("SIM_VERBOSE").is_some(),
            history: Mutex::default(),
            problems: Mutex::default(),
        })
    }

    /// Writes down what happened, for whoever looks at a failed seed.
    pub(super) fn note(&self, what: impl std::fmt::Display) {
        let at = self.start.elapsed().as_secs_f64();
        lock(&self.history).push(format!("{at:9.3} s  {what}"));
    }

    pub(super) fn detail(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            self.note(what());
        }
    }

    /// Writes down a broken promise, once.
    pub(super) fn problem(&self, what: impl std::fmt::Display) {
        let what = what.to_string();
        if !lock(&self.problems).contains(&what) {
            self.note(format_args!("PROBLEM {what}"));
            lock(&self.problems).push(what);
        }
    }

    pub(super) fn take_notes(&self) -> (Vec<String>, Vec<String>) {
        (std::mem::take(&mut *lock(&self.history)), std::mem::take(&mut *lock(&self.problems)))
    }

    pub(super) fn published(&self) -> usize {
        lock(&self.ledger).sent.len()
    }

    pub(super) fn set_api(&self, is_there: bool) {
        self.api.store(is_there, Ordering::Relaxed);
    }

    pub(super) fn pause_consumer(&self, paused: bool) {
        self.note(format_args!("paused by an operator: {paused}"));
        let controls = ConsumerControls { paused, rate_limit: None };
        self.database.alter(|tables| tables.controls.insert(CONSUMER.to_owned(), controls));
    }

    /// Whether the database knows where to go on everywhere. Where it does not, the broker's position counts.
    pub(super) fn has_begun(&self) -> bool {
        let partitions = self.database.tables().partitions;
        let begun = partitions.values().filter(|row| row.position.is_some()).count();
        begun == self.scenario.partitions as usize
    }

    pub(super) fn take_snapshot(&self) {
        if self.has_begun() {
            self.note("a snapshot is taken");
            *lock(&self.snapshot) = Some(self.database.tables());
        }
    }

    pub(super) fn restore(&self) {
        if let Some(tables) = lock(&self.snapshot).clone() {
            self.note("the database goes back to the snapshot");
            self.database.restore(tables);
            // Nobody is paused for ever by what an operator had set then.
            self.pause_consumer(false);
        }
    }

    /// Publishes everything, then a little peace, so that chaos has the last word.
    pub(super) async fn produce(self: Arc<Self>, mut dice: Dice, over: watch::Sender<bool>) {
        let killer = self.scenario.killer.then(|| dice.index(self.scenario.messages));
        for n in 0..self.scenario.messages {
            let fate = if Some(n) == killer { Character::Killer } else { self.fate(&mut dice) };
            let key = dice.index(self.scenario.keys + 1);
            let key = (key > 0 || fate == Character::Killer).then(|| Bytes::from(format!("key-{key}")));
            // Whether a message needs the dependency is known by its type.
            let event_type = match fate {
                Character::Unmatched => "other",
                Character::Needy => "needs",
                _ => "made",
            };
            let id = format!("m-{n}");
            let message = Received {
                id: Some(id.clone()),
                key,
                headers: vec![(TYPE_HEADER.to_owned(), Bytes::from_static(event_type.as_bytes()))],
                payload: Some(Bytes::from_static(b"{}")),
            };
            self.broker.publish(TOPIC, message.clone());
            lock(&self.ledger).sent.insert(id, Sent { fate, message });
            if self.scenario.copies && dice.happens(0.08) {
                let copy = lock(&self.ledger).sent.values().nth(dice.index(n + 1)).cloned();
                if let Some(copy) = copy {
                    self.detail(|| format!("  {:?} is published again", copy.message.id));
                    self.broker.publish(TOPIC, copy.message);
                }
            }
            tokio::time::sleep(dice.up_to(self.scenario.pace)).await; // pace: virtual time
        }
        self.note("the producer is done");
        tokio::time::sleep(dice.up_to(Duration::from_secs(4))).await; // pace: virtual time
        over.send_replace(true);
    }

    fn fate(&self, dice: &mut Dice) -> Character {
        if dice.happens(0.05) {
            return Character::Unmatched;
        }
        if dice.between(0, 99) >= self.scenario.bad {
            return if dice.happens(0.1) { Character::Needy } else { Character::Healthy };
        }
        // Fewer failures than attempts: such a message must never die.
        let times = u32::try_from(dice.between(1, 2)).expect("small");
        match dice.index(9) {
            0..=2 => Character::Flaky(times),
            3 => Character::FailsLate(times),
            4 => Character::Hangs(times),
            5 => Character::Doomed,
            6 | 7 => Character::Mended,
            _ => Character::Rejected,
        }
    }
}

/// The handler of one member.
pub(super) struct SimulatedHandler {
    pub(super) world: Arc<ConsumerWorld>,
    pub(super) member: Arc<str>,
}

impl SimulatedHandler {
    /// Whether this run is one of the first, which fail.
    fn fails(&self, id: &str, times: u32) -> bool {
        let mut ledger = lock(&self.world.ledger);
        let failures = ledger.failures.entry(id.to_owned()).or_insert(0);
        *failures += 1;
        *failures <= times
    }
}

#[async_trait]
impl MemoryHandler for SimulatedHandler {
    async fn handle(&self, tx: &mut MemoryTransaction, message: &Message<'_>) -> Result<(), HandlerError> {
        let (world, id) = (&self.world, message.id());
        let fate = {
            let mut ledger = lock(&world.ledger);
            *ledger.runs.entry(id.to_owned()).or_insert(0) += 1;
            ledger.sent.get(id).map_or(Character::Healthy, |sent| sent.fate)
        };
        world.detail(|| format!("  {} runs {id} ({fate:?}), attempt {}", self.member, message.attempt()));
        let latency = lock(&world.dice).up_to(world.scenario.handler_latency);
        tokio::time::sleep(latency).await; // pace: virtual time
        let error = || Err(std::io::Error::other("it fails").into());
        match fate {
            Character::Flaky(times) if self.fails(id, times) => return error(),
            Character::FailsLate(times) if self.fails(id, times) => {
                tx.refuse_commit(Failure::new(FailureKind::Error, "sim.late", "a constraint"));
            }
            Character::Hangs(times) if self.fails(id, times) => std::future::pending().await,
            Character::Needy if !world.api.load(Ordering::Relaxed) => {
                return Err(HandlerError::unavailable("api", "it is away"));
            }
            Character::Doomed => return error(),
            Character::Mended if lock(&world.ledger).mended.contains(id) => {}
            Character::Rejected | Character::Mended => {
                return Err(HandlerError::reject("sim.rejected", "refused"));
            }
            Character::Killer => {
                // A crew that is gone needs no killing.
                let _ = world.killed.send(Arc::clone(&self.member));
                std::future::pending().await
            }
            Character::Unmatched => world.problem(format_args!("{id} was handled, and no handler takes it")),
            _ => {}
        }
        tx.effect(message);
        Ok(())
    }
}
