//! Chaos: what goes wrong, one act after another, until the writers are done.

use super::fleet::Fleet;
use super::world::{Reach, SimulatedSink, World, lock};
use super::writers::TOPICS;
use crate::faults::Dice;
use posthaste::admin::DeadAct;
use posthaste::store::Controls;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// One kind of act.
#[derive(Debug, Clone, Copy)]
enum Act {
    Kill,
    Vanish,
    Freeze,
    Crash,
    Restart,
    Outage,
    CloseDestination,
    Pause,
    Operate,
}

/// Runs until `over`: acts now and then, and keeps the fleet at strength.
pub(super) async fn run(
    world: &Arc<World>,
    fleet: &mut Fleet,
    dice: &mut Dice,
    over: &mut watch::Receiver<bool>,
) {
    let acts = acts(world);
    let mut next = Instant::now() + world.tempo.wait(dice.up_to(world.scenario.chaos_pause));
    while !*over.borrow() {
        fleet.start_due().await;
        super::check::attempts(world);
        let wake = fleet.next_start().map_or(next, |start| start.min(next));
        tokio::select! {
            biased;
            _ = over.changed() => {}
            () = fleet.poisoning() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
        if Instant::now() >= next {
            next = Instant::now() + world.tempo.wait(dice.up_to(world.scenario.chaos_pause));
            if !acts.is_empty() {
                perform(acts[dice.index(acts.len())], world, fleet, dice).await;
            }
        }
    }
}

fn acts(world: &World) -> Vec<Act> {
    let troubles = &world.scenario.troubles;
    let table: [(bool, &[Act]); 7] = [
        (troubles.kills, &[Act::Kill, Act::Kill, Act::Vanish]),
        (troubles.freezes, &[Act::Freeze, Act::Freeze, Act::Freeze]),
        (troubles.crashes, &[Act::Crash]),
        (troubles.restarts, &[Act::Restart]),
        (troubles.outages, &[Act::Outage, Act::Outage]),
        (troubles.closed_destinations, &[Act::CloseDestination, Act::CloseDestination]),
        (troubles.operators, &[Act::Pause, Act::Operate]),
    ];
    table.iter().filter(|(on, _)| *on).flat_map(|(_, acts)| acts.iter().copied()).collect()
}

async fn perform(act: Act, world: &Arc<World>, fleet: &mut Fleet, dice: &mut Dice) {
    let berth = dice.index(fleet.len());
    let length = |dice: &mut Dice, secs| world.tempo.wait(dice.up_to(Duration::from_secs(secs)));
    let back = if dice.happens(0.5) { Duration::ZERO } else { length(dice, 3) };
    match act {
        Act::Kill => fleet.kill(berth, back),
        Act::Vanish => fleet.vanish(berth, back),
        // Leases last two seconds (or as much less, in real time): about half of the frozen come back as
        // zombies.
        Act::Freeze => fleet.freeze(berth, length(dice, 5)),
        Act::Restart => {
            fleet.drain(berth, back).await;
        }
        Act::Crash => {
            let ahead = i64::try_from(dice.between(0, 32)).expect("small");
            world.note("the server crashes");
            *lock(&world.crashes) += 1;
            world.database.crash(ahead);
        }
        Act::Outage => outage(world, dice),
        Act::CloseDestination => close_destination(world, dice),
        Act::Pause => pause(world, dice).await,
        Act::Operate => operate(world, dice).await,
    }
}

fn any_place(world: &World, dice: &mut Dice) -> Arc<SimulatedSink> {
    Arc::clone(&world.places[dice.index(world.places.len())])
}

/// Ends something later, whatever happens in between.
fn later(length: Duration, end: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        tokio::time::sleep(length).await; // pace
        end();
    });
}

fn outage(world: &Arc<World>, dice: &mut Dice) {
    let place = any_place(world, dice);
    let reach = [Reach::Refusing, Reach::Mute, Reach::Hanging][dice.index(3)];
    let length = world.tempo.wait(dice.up_to(Duration::from_secs(3)));
    world.note(format_args!("{} is {reach:?} for {length:?}", place.name));
    lock(&place.weather).reach = reach;
    later(length, move || lock(&place.weather).reach = Reach::Open);
}

fn close_destination(world: &Arc<World>, dice: &mut Dice) {
    let place = any_place(world, dice);
    let destination = TOPICS[dice.index(TOPICS.len())].to_owned();
    let length = world.tempo.wait(dice.up_to(Duration::from_secs(3)));
    world.note(format_args!("{destination} of {} is closed for {length:?}", place.name));
    lock(&place.weather).closed_destinations.insert(destination.clone());
    later(length, move || {
        lock(&place.weather).closed_destinations.remove(&destination);
    });
}

async fn pause(world: &Arc<World>, dice: &mut Dice) {
    let name = any_place(world, dice).name.to_string();
    let controls = match dice.index(3) {
        0 => Controls { paused_sinks: vec![name], ..Controls::default() },
        1 => Controls { paused_routes: vec![format!("route-{name}")], ..Controls::default() },
        _ => Controls { rate_limits: vec![(name, 50.0)], ..Controls::default() },
    };
    let length = world.tempo.wait(dice.up_to(Duration::from_secs(2)));
    world.note(format_args!("{controls:?} for {length:?}"));
    world.database.set_controls(controls).await;
    let world = Arc::clone(world);
    tokio::spawn(async move {
        tokio::time::sleep(length).await; // pace
        world.database.set_controls(Controls::default()).await;
    });
}

async fn operate(world: &Arc<World>, dice: &mut Dice) {
    let place = any_place(world, dice);
    let act = if dice.happens(0.7) { DeadAct::Replay } else { DeadAct::Discard };
    let letters = world.database.act_on_dead(&place.name, act).await;
    world.note(format_args!("{act:?} of {letters} dead letters of {}", place.name));
}

/// The weather clears up.
pub(super) async fn clear_up(world: &World) {
    world.note("everything heals");
    world.database.set_controls(Controls::default()).await;
    for place in &world.places {
        let mut weather = lock(&place.weather);
        weather.reach = Reach::Open;
        weather.closed_destinations.clear();
    }
}
