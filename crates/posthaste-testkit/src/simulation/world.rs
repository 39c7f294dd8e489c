//! What all actors of a simulation share, and what the final check looks at.

use super::ground::{Ground, Tempo};
use super::scenario::Scenario;
use crate::faults::{Broker, Dice, Offer, Reply};
use posthaste::event::Timestamp;
use posthaste::sink::{Failure, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use uuid::Uuid;

/// What the broker thinks of one event, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Temper {
    /// Takes it.
    Healthy,
    /// Takes it twice.
    Twice,
    /// Fails it so often, by its own fault, then takes it.
    Flaky(u32),
    /// Takes it, but so often nobody hears of it.
    Unheard(u32),
    /// Fails it always, by its own fault.
    Doomed,
    /// Rejects it.
    Rejected,
    /// Rejects it once; somebody mends it before it is replayed.
    Mended,
    /// Kills whoever publishes it.
    Poison,
}

/// How a sink's broker is to be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Reach {
    /// As it should be.
    #[default]
    Open,
    /// Refuses everybody.
    Refusing,
    /// Takes messages and does not say so.
    Mute,
    /// Does not answer.
    Hanging,
}

/// The weather at one sink.
#[derive(Debug, Default)]
pub(super) struct Weather {
    pub(super) reach: Reach,
    pub(super) closed_destinations: BTreeSet<String>,
}

/// An event that somebody appended, whatever became of its transaction.
#[derive(Debug, Clone)]
pub(super) struct Appended {
    pub(super) fate: Temper,
    pub(super) scheduled: bool,
    /// Set when its transaction rolled back, or died with the server.
    pub(super) rolled_back: bool,
}

/// What the relays of one sink did, as seen from the sink's side.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Failures by the event's own fault that a broker spoke out.
    pub(super) own_failures: BTreeMap<Uuid, u32>,
    /// Calls that a message was in.
    pub(super) calls: BTreeMap<Uuid, u32>,
    /// When an event was delivered first.
    pub(super) first_at: BTreeMap<Uuid, Timestamp>,
    /// `Delivered` verdicts that reached a relay.
    pub(super) heard: BTreeMap<Uuid, u32>,
}

/// One sink of the simulation.
pub(super) struct SimulatedSink {
    pub(super) name: Arc<str>,
    pub(super) broker: Broker,
    pub(super) weather: Mutex<Weather>,
    pub(super) tally: Mutex<Tally>,
}

/// The whole simulation.
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) tempo: Tempo,
    pub(super) database: Arc<dyn Ground>,
    pub(super) places: Vec<Arc<SimulatedSink>>,
    pub(super) ledger: Mutex<BTreeMap<Uuid, Appended>>,
    pub(super) crashes: Mutex<u32>,
    /// Relays that published an event which kills.
    pub(super) poisoned: mpsc::UnboundedSender<Arc<str>>,
    start: Instant,
    /// Whether every offer is written down too.
    verbose: bool,
    history: Mutex<Vec<String>>,
    problems: Mutex<Vec<String>>,
}

/// A lock that a panic elsewhere does not spoil: the panic is a finding of its own.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(
        database: Arc<dyn Ground>,
        scenario: Scenario,
        poisoned: mpsc::UnboundedSender<Arc<str>>,
    ) -> Arc<Self> {
        let place = |name: &String| {
            Arc::new(SimulatedSink {
                name: name.as_str().into(),
                broker: Broker::new(),
                weather: Mutex::default(),
                tally: Mutex::default(),
            })
        };
        let world = Arc::new(Self {
            places: scenario.sinks.iter().map(place).collect(),
            scenario,
            tempo: database.tempo(),
            database,
            ledger: Mutex::default(),
            crashes: Mutex::default(),
            poisoned,
            start: Instant::now(),
            verbose: std::env::var_os("SIM_VERBOSE").is_some(),
            history: Mutex::default(),
            problems: Mutex::default(),
        });
        world.database.set_run_max(world.scenario.run_max);
        for place in &world.places {
            // Weak: the broker must not keep the world that owns it.
            let (here, there) = (Arc::downgrade(place), Arc::downgrade(&world));
            place.broker.judge(move |offer| match (here.upgrade(), there.upgrade()) {
                (Some(place), Some(world)) => {
                    let reply = place.judge(&world, offer);
                    if matches!(reply, Reply::Deliver | Reply::DeliverTwice | Reply::DeliverBut(_)) {
                        let (id, now) = (offer.message.stored.event.id, world.database.now());
                        lock(&place.tally).first_at.entry(id).or_insert(now);
                    }
                    let (seq, key) = (offer.message.stored.seq, &offer.message.stored.event.key);
                    world.detail(|| format!("  {seq} of {key:?} is offered to {}: {reply:?}", place.name));
                    reply
                }
                _ => Reply::Refuse(Verdict::Retry(Failure::of_sink("sim.over", "the simulation is over"))),
            });
        }
        world
    }

    /// Lets some time pass.
    pub(super) async fn pause(&self, wait: Duration) {
        tokio::time::sleep(self.tempo.wait(wait)).await; // pace
    }

    /// The same inside a transaction.
    pub(super) async fn pause_inside(&self, wait: Duration) {
        tokio::time::sleep(self.tempo.wait_inside(wait)).await; // pace
    }

    /// Writes down what happened, for whoever looks at a failed seed.
    pub(super) fn note(&self, what: impl std::fmt::Display) {
        let at = self.start.elapsed().as_secs_f64();
        lock(&self.history).push(format!("{at:9.3} s  {what}"));
    }

    /// Writes down a detail that only a closer look asks for.
    pub(super) fn detail(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            self.note(what());
        }
    }

    /// Writes down a broken promise.
    pub(super) fn problem(&self, what: impl std::fmt::Display) {
        self.note(format_args!("PROBLEM {what}"));
        lock(&self.problems).push(what.to_string());
    }

    pub(super) fn take_notes(&self) -> (Vec<String>, Vec<String>) {
        (std::mem::take(&mut *lock(&self.history)), std::mem::take(&mut *lock(&self.problems)))
    }

    pub(super) fn fate(&self, id: Uuid) -> Temper {
        lock(&self.ledger).get(&id).map_or(Temper::Healthy, |appended| appended.fate)
    }
}

impl SimulatedSink {
    /// What the broker says of a message now.
    fn judge(&self, world: &World, Offer { message, by, .. }: Offer<'_>) -> Reply {
        let id = message.stored.event.id;
        {
            let weather = lock(&self.weather);
            match weather.reach {
                Reach::Refusing => {
                    return Reply::Refuse(Verdict::Retry(Failure::of_sink("sim.down", "refused")));
                }
                // Nor does it take now what it would not take on a better day.
                Reach::Mute
                    if matches!(world.fate(id), Temper::Doomed | Temper::Rejected | Temper::Poison) =>
                {
                    return Reply::Refuse(Verdict::Unknown(Failure::of_sink("sim.mute", "no answer")));
                }
                Reach::Mute => {
                    return Reply::DeliverBut(Verdict::Unknown(Failure::of_sink("sim.mute", "no answer")));
                }
                Reach::Hanging => return Reply::Hang,
                Reach::Open => {}
            }
            if weather.closed_destinations.contains(&message.destination) {
                return Reply::Refuse(Verdict::Retry(Failure::of_destination("sim.closed", "no leader")));
            }
        }
        let mut tally = lock(&self.tally);
        let failures = tally.own_failures.entry(id).or_insert(0);
        let own = || Failure::of_event("sim.event", "by its own fault");
        let reply = match world.fate(id) {
            Temper::Healthy => return Reply::Deliver,
            Temper::Poison => {
                // A fleet that is gone needs no killing.
                let _ = world.poisoned.send(Arc::clone(by));
                return Reply::Hang;
            }
            Temper::Twice => return Reply::DeliverTwice,
            Temper::Flaky(times) | Temper::Unheard(times) if *failures >= times => return Reply::Deliver,
            Temper::Mended if *failures >= 1 => return Reply::Deliver,
            Temper::Unheard(_) => Reply::DeliverBut(Verdict::Unknown(own())),
            Temper::Flaky(_) | Temper::Doomed => Reply::Refuse(Verdict::Retry(own())),
            Temper::Rejected | Temper::Mended => Reply::Refuse(Verdict::Rejected(own())),
        };
        *failures += 1;
        reply
    }
}

/// The fate of the next event.
pub(super) fn fate(dice: &mut Dice, scenario: &Scenario) -> Temper {
    if !scenario.troubles.bad_events || dice.happens(0.85) {
        return Temper::Healthy;
    }
    // Fewer failures than attempts: such an event must never die.
    let times = u32::try_from(dice.between(1, u64::from(scenario.retry.max_attempts) - 1)).expect("small");
    match dice.index(8) {
        0 => Temper::Twice,
        1 | 2 => Temper::Flaky(times),
        3 | 4 => Temper::Unheard(times),
        5 => Temper::Doomed,
        6 => Temper::Rejected,
        _ => Temper::Mended,
    }
}
