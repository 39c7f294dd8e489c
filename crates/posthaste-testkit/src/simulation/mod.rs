//! A seeded simulation of the production relay.
//!
//! Writers append in overlapping transactions, relays of the real engine move the events, and chaos
//! kills, freezes, cuts off and crashes, all of it thrown from one seed. At the end everything heals;
//! the simulation waits until all is quiet, with a bound, and then looks at it from outside: at what the
//! brokers got and at what the database says (`check.rs` has the list of promises).
//!
//! The engine, the cursor and the lifecycle are the shipped ones. The database is a [`Ground`]. On the model
//! ([`crate::memory`]) time is tokio's paused clock on a single thread, so minutes of retries and leases pass
//! in milliseconds, and the same seed does the same again. On a real store time is real and short, and a seed
//! repeats what is thrown, not how threads interleave (`ground.rs`).
//!
//! A simulation that cannot fail is worth nothing: [`posthaste::mutation`] breaks the engine in five
//! ways, and each must turn some seed red.

mod chaos;
mod check;
pub mod consumer;
mod fleet;
mod ground;
mod scenario;
mod world;
mod writers;

pub use ground::{Burial, DeferredEvent, Ground, LaneReceipt, Tempo, Transaction};

use crate::faults::Dice;
use crate::memory::MemoryDatabase;
use fleet::Fleet;
use posthaste::admin::DeadAct;
use posthaste::relay::DrainOutcome;
use posthaste::route::OnDead;
use scenario::Scenario;
use std::cell::RefCell;
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use world::World;
use writers::Writers;

/// Time that a healed simulation has to become quiet, at any tempo. Retries end within seconds, breakers
/// close within one, leases of the dead expire within two, a broken lane is tried again after ten.
const QUIET_WITHIN: Duration = Duration::from_secs(90);

/// How a simulation ended.
#[derive(Debug)]
pub struct SimulationOutcome {
    /// The seed.
    pub seed: u64,
    /// Promises that were broken. None: it is green.
    pub problems: Vec<String>,
    /// What happened, in order of time.
    pub history: Vec<String>,
    /// Events that were committed.
    pub committed: usize,
    /// Messages that arrived at all brokers.
    pub deliveries: usize,
    /// Time from the end of all faults until everything was settled.
    pub healed_in: Duration,
}

/// Runs one seed to its end, on the model.
#[must_use]
pub fn run(seed: u64) -> SimulationOutcome {
    run_on(seed, Tempo::Virtual, || Arc::new(MemoryDatabase::new()))
}

/// Runs one seed to its end on a database that is made inside the runtime. The engine stays on this thread,
/// whatever threads the database has: mutations and panics belong to it.
#[must_use]
pub fn run_on(seed: u64, tempo: Tempo, make: impl FnOnce() -> Arc<dyn Ground>) -> SimulationOutcome {
    watch_panics();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(tempo == Tempo::Virtual)
        .build()
        .expect("a runtime needs nothing but memory");
    let outcome = runtime.block_on(async { simulate(seed, make()).await });
    // Tasks that are still there go with the runtime, before the next seed begins.
    drop(runtime);
    outcome
}

async fn simulate(seed: u64, database: Arc<dyn Ground>) -> SimulationOutcome {
    let mut dice = Dice::new(seed);
    let (poisoned, deaths) = mpsc::unbounded_channel();
    let scenario = Scenario::throw(&mut dice, database.tempo());
    let world = World::new(database, scenario, poisoned);
    world.note(format_args!("{:?}", world.scenario));
    let mut fleet = Fleet::new(&world, dice.fork(), deaths);
    let (over, mut is_over) = watch::channel(false);
    let writing = tokio::spawn(write(Arc::clone(&world), dice.fork(), over));
    chaos::run(&world, &mut fleet, &mut dice, &mut is_over).await;
    if let Err(error) = writing.await {
        world.problem(format_args!("the writers failed: {error}"));
    }
    let healed_in = heal(&world, &mut fleet).await;
    check::everything(&world);
    for problem in standing(&world, &fleet).await {
        world.problem(problem);
    }
    drain(&world, &mut fleet).await;
    for panic in PANICS.take() {
        world.problem(format_args!("panic: {panic}"));
    }
    let deliveries = world.places.iter().map(|place| place.broker.deliveries().len()).sum();
    let (history, problems) = world.take_notes();
    let committed = world.database.committed().len();
    SimulationOutcome { seed, problems, history, committed, deliveries, healed_in }
}

/// All writers, then a little peace, so that chaos has the last word.
async fn write(world: Arc<World>, mut dice: Dice, over: watch::Sender<bool>) {
    let writers = Writers::new(&world);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..world.scenario.writers {
        tasks.spawn(Arc::clone(&writers).write(dice.fork()));
    }
    if world.scenario.troubles.poison {
        tasks.spawn(Arc::clone(&writers).poison(dice.fork()));
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("writers do not fail");
    }
    world.note("the writers are done");
    world.pause(dice.up_to(Duration::from_secs(4))).await;
    over.send_replace(true);
}

/// Everything works again; waits until all is quiet, and says how long that took.
async fn heal(world: &Arc<World>, fleet: &mut Fleet) -> Duration {
    let healed = Instant::now();
    chaos::clear_up(world).await;
    fleet.heal().await;
    if world.scenario.drains_early {
        drain(world, fleet).await;
    }
    let deadline = Instant::now() + QUIET_WITHIN;
    let mut next_act = Instant::now() + world.tempo.wait(Duration::from_secs(1));
    while !check::is_quiet(world) && Instant::now() < deadline {
        fleet.start_due().await;
        tokio::select! {
            biased;
            () = fleet.poisoning() => {}
            () = world.pause(Duration::from_millis(100)) => {}
        }
        // Keys that a dead letter holds wait for an operator: one comes after a while, and stays.
        if world.scenario.on_dead == OnDead::Hold && Instant::now() >= next_act {
            next_act = Instant::now() + world.tempo.wait(Duration::from_millis(300));
            for place in &world.places {
                let letters = world.database.act_on_dead(&place.name, DeadAct::Discard).await;
                world.note(format_args!("{letters} dead letters of {} are discarded", place.name));
            }
        }
    }
    world.note("quiet");
    let healed_in = healed.elapsed();
    // Some heartbeats more, so that every relay has heard that all is well and has its share.
    fleet.start_due().await;
    world.pause(Duration::from_secs(5)).await;
    healed_in
}

/// What is wrong with the relays after all that: shares of lanes, and what they say of themselves.
async fn standing(world: &Arc<World>, fleet: &Fleet) -> Vec<String> {
    let deadline = Instant::now() + world.tempo.patience();
    loop {
        let mut problems = check::shares(world, &fleet.names());
        problems.extend(fleet.complaints());
        if problems.is_empty() || Instant::now() >= deadline {
            return problems;
        }
        world.pause(Duration::from_millis(200)).await;
    }
}

/// A drained shutdown of all relays at once.
async fn drain(world: &Arc<World>, fleet: &mut Fleet) {
    let mut drained = Vec::new();
    for berth in 0..fleet.len() {
        let Some((name, outcome)) = fleet.drain(berth, Duration::ZERO).await else { continue };
        // One that lost a lease on its way says so, and rightly.
        if outcome == DrainOutcome::Hurried && check::is_calm(world) {
            world.problem(format_args!("G8: the drained shutdown of {name} was not clean"));
        }
        drained.push(name);
    }
    check::drained(world, &drained);
}

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A panic inside a task is caught by the runtime and, rightly, mended by the engine: here it is a bug.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
            before(info);
        }));
    });
}
