//! The check, from outside: what arrived at the brokers, and what the database says.
//!
//! | promise | how it is seen |
//! |---|---|
//! | G1 | nothing that rolled back was delivered |
//! | G2 | every committed event was delivered or buried, and is settled |
//! | G3 | first deliveries of a key are in order; no sink held two of a key that may not |
//! | G4 | the receipts of a lane have growing epochs, and settle each event once (double entry) |
//! | G8 | after a drain no lane is owned, and whatever a relay was told is settled |
//! | F50 | nobody died of an outage; no attempt was counted in one |
//! | G7 | what was delivered twice fits into the windows of those that died |
//! | shares | seconds after the end of all faults every lane has an owner, and relays have equal shares |

use super::ground::Tempo;
use super::scenario::Scenario;
use super::world::{Appended, SimulatedSink, Temper, World, lock};
use posthaste::event::{StoredEvent, Timestamp};
use posthaste::route::OnDead;
use posthaste::store::{ErrorClass, LaneId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Whether everything committed is settled. Whether it was also delivered is checked afterwards.
pub(super) fn is_quiet(world: &World) -> bool {
    world.places.iter().all(|place| world.database.unsettled(&place.name).is_empty())
}

fn buried(world: &World, place: &SimulatedSink) -> BTreeSet<Uuid> {
    world.database.burials(&place.name).iter().map(|letter| letter.id).collect()
}

/// By event: which delivery was its first.
fn first_deliveries(place: &SimulatedSink) -> BTreeMap<Uuid, usize> {
    let mut first = BTreeMap::new();
    for (at, delivery) in place.broker.deliveries().iter().enumerate() {
        first.entry(delivery.id).or_insert(at);
    }
    first
}

/// Everything that must hold at the end.
pub(super) fn everything(world: &World) {
    let committed = world.database.committed();
    let ledger = lock(&world.ledger).clone();
    for place in &world.places {
        nothing_lost(world, place, &committed);
        nothing_invented(world, place, &ledger);
        keys_in_order(world, place, &committed, &ledger);
        deaths_deserved(world, place);
        dead_keys_held(world, place, &committed, &ledger);
        receipts(world, place, &committed);
        duplicates_bounded(world, place);
        place
            .broker
            .violations()
            .into_iter()
            .for_each(|violation| world.problem(format_args!("G3: {violation}")));
    }
    attempts(world);
}

fn nothing_lost(world: &World, place: &SimulatedSink, committed: &[StoredEvent]) {
    let (delivered, buried) = (first_deliveries(place), buried(world, place));
    let unsettled = world.database.unsettled(&place.name);
    for stored in committed {
        let id = stored.event.id;
        let ended = delivered.contains_key(&id) || buried.contains(&id);
        let settled = !unsettled.contains(&stored.seq);
        if !ended || !settled {
            let (seq, key, fate) = (stored.seq, &stored.event.key, world.fate(id));
            let what = if ended {
                "not settled"
            } else if settled {
                "lost"
            } else {
                "stuck"
            };
            world.problem(format_args!(
                "G2: event {seq} of key {key:?} ({fate:?}) is {what} in {}",
                place.name
            ));
        }
    }
}

fn nothing_invented(world: &World, place: &SimulatedSink, ledger: &BTreeMap<Uuid, Appended>) {
    for (id, _) in first_deliveries(place) {
        match ledger.get(&id) {
            Some(appended) if appended.rolled_back => {
                world.problem(format_args!("G1: {id} was delivered although it rolled back"));
            }
            Some(Appended { fate: Temper::Doomed | Temper::Rejected | Temper::Poison, .. }) => {
                world.problem(format_args!("the simulation delivered {id}, which it never does"));
            }
            Some(_) => {}
            None => world.problem(format_args!("G1: {id} was delivered and nobody appended it")),
        }
    }
}

fn keys_in_order(
    world: &World,
    place: &SimulatedSink,
    committed: &[StoredEvent],
    ledger: &BTreeMap<Uuid, Appended>,
) {
    let first = first_deliveries(place);
    // A death that does not hold its key lets the rest of it pass; a replay then comes out of order, as
    // declared. A scheduled event was appended for another time.
    let exempt = |stored: &StoredEvent| {
        let appended = &ledger[&stored.event.id];
        let replayed = appended.fate == Temper::Mended && world.scenario.on_dead == OnDead::Continue;
        appended.scheduled || replayed
    };
    let mut last: BTreeMap<&str, (usize, i64)> = BTreeMap::new();
    for stored in committed.iter().filter(|stored| !exempt(stored)) {
        let (Some(key), Some(at)) = (stored.event.key.as_deref(), first.get(&stored.event.id)) else {
            continue;
        };
        if let Some((before, seq)) = last.get(key)
            && at < before
        {
            world.problem(format_args!(
                "G3: {} of {key} was delivered before {seq} in {}",
                stored.seq, place.name
            ));
        }
        last.insert(key, (*at, stored.seq));
    }
}

fn deaths_deserved(world: &World, place: &SimulatedSink) {
    let max_attempts = world.scenario.retry.max_attempts;
    for letter in world.database.burials(&place.name) {
        let (id, death) = (letter.id, &letter.death);
        let fate = world.fate(id);
        let troubles = &world.scenario.troubles;
        // In real time a slow machine does.
        let others_die = troubles.kills
            || troubles.freezes
            || troubles.crashes
            || troubles.store_errors
            || world.tempo == Tempo::Real;
        let calls = lock(&place.tally).calls.get(&id).copied().unwrap_or(0);
        let deserved = match fate {
            // Where relays die of other things too, an innocent may be in hand each time. Elsewhere not.
            _ if death.code == "relay.crashed" => {
                fate == Temper::Poison || (others_die && calls >= world.scenario.settings.crash_limit)
            }
            Temper::Doomed => death.class == ErrorClass::Transient && death.attempts >= max_attempts,
            Temper::Rejected | Temper::Mended => death.class == ErrorClass::Permanent,
            Temper::Poison | Temper::Healthy | Temper::Twice | Temper::Flaky(_) | Temper::Unheard(_) => false,
        };
        if !deserved {
            world.problem(format_args!("F50: event {} ({fate:?}) died of {death:?}", letter.seq));
        }
    }
}

/// Where a death holds its key, nothing of the key is delivered until an operator has acted.
fn dead_keys_held(
    world: &World,
    place: &SimulatedSink,
    committed: &[StoredEvent],
    ledger: &BTreeMap<Uuid, Appended>,
) {
    let first_at = lock(&place.tally).first_at.clone();
    for letter in world.database.burials(&place.name) {
        let id = letter.id;
        // One that is mended may be delivered by a zombie, and what is behind it with it. A scheduled one
        // may die when others of its key are on their way already.
        let exempt = world.fate(id) == Temper::Mended || ledger[&id].scheduled;
        if !letter.death.holds || letter.key.is_none() || exempt {
            continue;
        }
        let behind = committed.iter().filter(|stored| {
            stored.event.key == letter.key && stored.seq > letter.seq && !ledger[&stored.event.id].scheduled
        });
        for stored in behind {
            let passed =
                |at: &Timestamp| *at > letter.dead_at && letter.gone_at.is_none_or(|gone| *at < gone);
            if first_at.get(&stored.event.id).is_some_and(passed) {
                let (seq, dead) = (stored.seq, letter.seq);
                world.problem(format_args!(
                    "G3: {seq} was delivered past the dead {dead}, which holds its key"
                ));
            }
        }
    }
}

/// No more attempts are written down than the event's own failures: outages do not count. Checked while
/// the simulation runs too, for a deferred event leaves no trace.
pub(super) fn attempts(world: &World) {
    for place in &world.places {
        let tally = lock(&place.tally);
        let own = |id: Uuid| tally.own_failures.get(&id).copied().unwrap_or(0);
        for waiting in world.database.deferred(&place.name) {
            let (id, attempts) = (waiting.id, waiting.attempts);
            if attempts > own(id) {
                let what = format!(
                    "F50: event {} has {attempts} attempts and failed {} times",
                    waiting.seq,
                    own(id)
                );
                world.problem(what);
            }
        }
    }
}

fn lane_ids(scenario: &Scenario, place: &SimulatedSink) -> Vec<LaneId> {
    let lanes = 0..i16::try_from(scenario.lanes).expect("few lanes");
    lanes.map(|lane| LaneId { sink: Arc::clone(&place.name), lane }).collect()
}

fn receipts(world: &World, place: &SimulatedSink, committed: &[StoredEvent]) {
    for lane in lane_ids(&world.scenario, place) {
        let receipts = world.database.receipts(&lane);
        for pair in receipts.windows(2) {
            if pair[1].epoch < pair[0].epoch || pair[1].n != pair[0].n + 1 {
                let (old, new) = (&pair[0], &pair[1]);
                world.problem(format_args!(
                    "G4: {lane}: receipt {} of epoch {} follows {} of epoch {}",
                    new.n, new.epoch, old.n, old.epoch
                ));
            }
            if pair[1].position < pair[0].position {
                world.problem(format_args!("G2: the cursor of {lane} went back at receipt {}", pair[1].n));
            }
        }
        let settled: u64 = receipts.iter().map(|receipt| receipt.events).sum();
        let sum: Option<i64> = receipts.iter().map(|receipt| receipt.seq_sum).sum();
        let mine = committed.iter().filter(|stored| world.database.lane_of(stored) == lane.lane);
        let there = mine.fold((0, 0), |(events, sum), stored| (events + 1, sum + stored.seq));
        // A store that keeps no sum is checked by count.
        let settled = (settled, sum.unwrap_or(there.1));
        if settled != there {
            world.problem(format_args!(
                "G2: the double entry of {lane}: {settled:?} settled, {there:?} in the log"
            ));
        }
    }
}

/// What a relay was told twice is what its predecessor had in hand at its death, or the server at a crash.
fn duplicates_bounded(world: &World, place: &SimulatedSink) {
    let crashes = u64::from(*lock(&world.crashes));
    let lost = |lane| u64::from(world.database.deaths(lane)) + crashes;
    let deaths: u64 = lane_ids(&world.scenario, place).iter().map(lost).sum();
    let twice: u64 = lock(&place.tally).heard.values().map(|heard| u64::from(heard.saturating_sub(1))).sum();
    let (bound, name) = (deaths * world.scenario.window(), &place.name);
    if twice > bound {
        world.problem(format_args!("G7: {twice} sent twice to {name}, at most {bound} by {deaths} deaths"));
    }
}

/// Every lane has an owner among those that run, and nobody has two more than another. What is wrong about
/// that.
pub(super) fn shares(world: &World, relays: &[Arc<str>]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut owned: BTreeMap<&Arc<str>, usize> = relays.iter().map(|relay| (relay, 0)).collect();
    for lane in world.database.lanes() {
        match lane.owner.as_ref().and_then(|owner| owned.get_mut(owner)) {
            Some(lanes) => *lanes += 1,
            None => problems.push(format!("{} has no owner that runs: {:?}", lane.id, lane.owner)),
        }
    }
    let (most, least) = (owned.values().max(), owned.values().min());
    if most > least.map(|least| least + 1).as_ref() {
        problems.push(format!("the lanes are not shared fairly: {owned:?}"));
    }
    problems
}

/// Whether every relay lived in peace. In real time the machine has a say in that: a relay that it let starve
/// lost its lease.
pub(super) fn is_calm(world: &World) -> bool {
    let deaths = || {
        let lanes = world.places.iter().flat_map(|place| lane_ids(&world.scenario, place));
        lanes.map(|lane| world.database.deaths(&lane)).sum::<u32>()
    };
    world.scenario.troubles.spare_the_fleet() && (world.tempo == Tempo::Virtual || deaths() == 0)
}

/// After a drained shutdown of these relays.
pub(super) fn drained(world: &World, relays: &[Arc<str>]) {
    for lane in world.database.lanes() {
        // The lease of a host that vanished is still to expire.
        if let Some(owner) = lane.owner.as_ref().filter(|owner| relays.contains(owner)) {
            world.problem(format_args!("G8: {owner} drained and still owns {}", lane.id));
        }
    }
    if !is_calm(world) {
        return;
    }
    // Nobody died, so every acknowledgement that was heard belongs to somebody who drained.
    let committed = world.database.committed();
    for place in &world.places {
        let (heard, unsettled) = (lock(&place.tally).heard.clone(), world.database.unsettled(&place.name));
        for stored in committed.iter().filter(|stored| heard.contains_key(&stored.event.id)) {
            if unsettled.contains(&stored.seq) {
                world.problem(format_args!(
                    "G8: {} was acknowledged by {} and is not settled",
                    stored.seq, place.name
                ));
            }
        }
    }
}
