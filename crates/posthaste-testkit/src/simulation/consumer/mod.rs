//! A seeded simulation of the production consumer.
//!
//! A producer publishes, and now and then the same message twice. Members of the real engine handle it on
//! the model of the inbox ([`crate::inbox`]) and of a broker ([`crate::broker`]). Chaos kills members,
//! makes zombies of them, cuts the database off, restarts it and puts it back to an earlier state.
//! Operators replay, discard, seek and repeat. At the end everything heals; the simulation waits until all
//! is quiet, and then compares effects, order, marks, rows and positions with what was published
//! (`check.rs` has the list of promises).

mod check;
mod crew;
mod operator;
mod scenario;
mod world;

use super::{PANICS, QUIET_WITHIN, SimulationOutcome, watch_panics};
use crate::faults::Dice;
use crew::Crew;
use posthaste::consumer::OnDead;
use posthaste::relay::DrainOutcome;
use scenario::{ConsumerScenario, Mishap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use world::ConsumerWorld;

/// How often somebody looks whether a member is to be started.
const TICK: Duration = Duration::from_millis(100);
/// How often the promises that hold at any time are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs one seed to its end.
#[must_use]
pub fn run(seed: u64) -> SimulationOutcome {
    watch_panics();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs nothing but memory");
    let outcome = runtime.block_on(simulate(seed));
    drop(runtime);
    outcome
}

async fn simulate(seed: u64) -> SimulationOutcome {
    let mut dice = Dice::new(seed);
    let (killed, deaths) = mpsc::unbounded_channel();
    let world = ConsumerWorld::new(ConsumerScenario::throw(&mut dice), dice.fork(), killed);
    world.note(format_args!("{:?}", world.scenario));
    let mut crew = Crew::new(&world, dice.fork(), deaths);
    let (over, mut is_over) = watch::channel(false);
    let producing = tokio::spawn(Arc::clone(&world).produce(dice.fork(), over));
    chaos(&world, &mut crew, &mut dice, &mut is_over).await;
    if let Err(error) = producing.await {
        world.problem(format_args!("the producer failed: {error}"));
    }
    let healed_in = heal(&world, &mut crew).await;
    check::everything(&world);
    for complaint in crew.complaints() {
        world.problem(complaint);
    }
    for (name, outcome) in crew.drain_all().await {
        if outcome != DrainOutcome::Clean {
            world.problem(format_args!("G8: the drained shutdown of {name} was not clean"));
        }
    }
    check::always(&world);
    for panic in PANICS.take() {
        world.problem(format_args!("panic: {panic}"));
    }
    let (committed, deliveries) = (world.published(), world.database.tables().effects.len());
    let (history, problems) = world.take_notes();
    SimulationOutcome { seed, problems, history, committed, deliveries, healed_in }
}

/// Acts now and then until the producer is done, and keeps the crew at strength.
async fn chaos(
    world: &Arc<ConsumerWorld>,
    crew: &mut Crew,
    dice: &mut Dice,
    over: &mut watch::Receiver<bool>,
) {
    let acts = world.scenario.acts();
    let mut next = Instant::now() + dice.up_to(world.scenario.chaos_pause);
    let mut looked = Instant::now();
    while !*over.borrow() {
        crew.start_due();
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            check::always(world);
        }
        tokio::select! {
            biased;
            _ = over.changed() => {}
            () = crew.killing() => {}
            () = tokio::time::sleep_until(next.min(Instant::now() + TICK)) => {}
        }
        if Instant::now() >= next {
            next = Instant::now() + TICK + dice.up_to(world.scenario.chaos_pause);
            if !acts.is_empty() {
                perform(acts[dice.index(acts.len())], world, crew, dice).await;
                check::always(world);
            }
        }
    }
}

async fn perform(act: Mishap, world: &Arc<ConsumerWorld>, crew: &mut Crew, dice: &mut Dice) {
    let berth = dice.index(crew.len());
    let length = dice.up_to(Duration::from_secs(4));
    let back = if dice.happens(0.5) { Duration::ZERO } else { dice.up_to(Duration::from_secs(2)) };
    match act {
        Mishap::Kill => crew.kill(berth, back),
        Mishap::Zombie => crew.lose(berth, length),
        Mishap::Leave => drop(crew.drain(berth, back).await),
        Mishap::Outage => {
            world.note(format_args!("the database is away for {length:?}"));
            world.database.set_away(true);
            let database = world.database.clone();
            later(length, move || database.set_away(false));
        }
        Mishap::Restart => {
            world.note("the database restarts");
            world.database.restart();
        }
        Mishap::Snapshot => world.take_snapshot(),
        Mishap::Restore => world.restore(),
        Mishap::Age => {
            world.note("two weeks pass for marks");
            world.database.age(world::CONSUMER, Duration::from_secs(15 * 86_400));
        }
        Mishap::Meddle if !world.has_begun() => {}
        Mishap::Meddle => {
            let all: Vec<usize> = (0..crew.len()).collect();
            all.into_iter().for_each(|berth| crew.kill(berth, Duration::from_millis(10)));
            let share = dice.between(0, 10) as i64;
            world.note(format_args!("somebody moves the broker's positions to {share}0 %"));
            world.broker.reset(world::GROUP, world::TOPIC, |end| end * share / 10);
        }
        Mishap::Api => {
            world.note(format_args!("the dependency is away for {length:?}"));
            world.set_api(false);
            let world = Arc::clone(world);
            later(length, move || world.set_api(true));
        }
        Mishap::Pause => {
            world.pause_consumer(true);
            let world = Arc::clone(world);
            later(length, move || world.pause_consumer(false));
        }
        Mishap::Operate => operator::act(world, dice).await,
    }
}

/// Ends something later, whatever happens in between.
fn later(length: Duration, end: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(length).await; // pace: virtual time
        end();
    });
}

/// Everything works again; waits until all is quiet, and says how long that took.
async fn heal(world: &Arc<ConsumerWorld>, crew: &mut Crew) -> Duration {
    let healed = Instant::now();
    world.note("everything heals");
    world.database.set_away(false);
    world.set_api(true);
    world.pause_consumer(false);
    crew.heal();
    // One key with many dead letters takes its time: each waits for an operator.
    let (mut deadline, mut progress) = (healed + QUIET_WITHIN, check::progress(world));
    let mut next_act = healed + Duration::from_secs(1);
    while !check::is_quiet(world) && Instant::now() < deadline {
        let now = check::progress(world);
        if now != progress {
            (deadline, progress) = (Instant::now() + QUIET_WITHIN, now);
        }
        crew.start_due();
        tokio::select! {
            biased;
            () = crew.killing() => {}
            () = tokio::time::sleep(TICK) => {}
        }
        // Keys that a dead letter holds wait for an operator: one comes after a while, and stays.
        if world.scenario.settings.on_dead == OnDead::Hold && Instant::now() >= next_act {
            next_act = Instant::now() + Duration::from_millis(300);
            operator::discard_all(world).await;
        }
    }
    let healed_in = healed.elapsed();
    world.note("quiet");
    crew.start_due();
    // One sweep more, so that every member has counted what others did.
    tokio::time::sleep(Duration::from_secs(12)).await; // pace: virtual time
    healed_in
}
