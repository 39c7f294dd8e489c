//! The check, from outside: what the tables say, and what was published.
//!
//! | promise | how it is seen |
//! |---|---|
//! | I1 once | one effect for each message, and one more for each time that somebody asked for it |
//! | I2 truth | before a saved position every message has its mark, or no handler takes it; at any time |
//! | I3 order | first effects of a key, or of a partition, are in the order of the partition |
//! | I4 completeness | marks and rows agree; at any time |
//! | nothing lost | every message is done, a dead letter, or was discarded |
//! | nothing stuck | after all faults everything moves on, until all is settled |
//! | F50 | no more attempts are counted than were made; nobody died who would have succeeded |

use super::super::world::lock;
use super::scenario::Mishap;
use super::world::{CONSUMER, Character, ConsumerWorld, Ledger, TOPIC};
use crate::inbox::{Mark, MarkOutcome, Tables};
use posthaste::consumer::{Disposition, OnDead, Order};
use posthaste::source::Partition;
use std::collections::BTreeMap;

fn positions(world: &ConsumerWorld, tables: &Tables) -> Vec<(Partition, Vec<String>, Option<i64>)> {
    let logs = world.broker.entries(TOPIC).into_iter().enumerate();
    let one = |(number, log): (usize, Vec<_>)| {
        let partition = Partition::new(TOPIC, i32::try_from(number).unwrap_or(0));
        let saved = tables.partitions.get(&(CONSUMER.to_owned(), partition.clone()));
        let id = |(message, _): (posthaste::source::Received, _)| message.id.unwrap_or_default();
        (partition, log.into_iter().map(id).collect(), saved.and_then(|row| row.position))
    };
    logs.map(one).collect()
}

fn mark<'a>(tables: &'a Tables, id: &str) -> Option<&'a Mark> {
    tables.marks.get(&(CONSUMER.to_owned(), id.to_owned()))
}

/// Whether everything is settled. What became of it is checked afterwards.
pub(super) fn is_quiet(world: &ConsumerWorld) -> bool {
    let tables = world.database.tables();
    let holding = tables.letters_of(CONSUMER).iter().any(|letter| letter.burial.holds_key);
    let behind = |(_, log, saved): &(Partition, Vec<String>, Option<i64>)| *saved != Some(log.len() as i64);
    !holding && tables.deferred.is_empty() && !positions(world, &tables).iter().any(behind)
}

/// How far everything has come. As long as it changes, nothing is stuck.
pub(super) fn progress(world: &ConsumerWorld) -> (Vec<Option<i64>>, usize, usize) {
    let tables = world.database.tables();
    let saved = positions(world, &tables).into_iter().map(|(_, _, saved)| saved).collect();
    (saved, tables.deferred.len(), lock(&world.ledger).discarded.len())
}

/// What holds at any time.
pub(super) fn always(world: &ConsumerWorld) {
    let tables = world.database.tables();
    let mut ledger = lock(&world.ledger);
    for letter in tables.letters_of(CONSUMER) {
        ledger.died.insert(letter.row.work.id.to_string());
    }
    truth(world, &tables, &ledger);
    completeness(world, &tables, &ledger);
    attempts(world, &tables, &ledger);
}

fn truth(world: &ConsumerWorld, tables: &Tables, ledger: &Ledger) {
    for (partition, log, saved) in positions(world, tables) {
        let before = usize::try_from(saved.unwrap_or(0)).unwrap_or(0);
        if before > log.len() {
            world.problem(format_args!("I2: {partition} stands at {before} of {}", log.len()));
        }
        for id in log.iter().take(before) {
            let unmatched = ledger.sent.get(id).is_some_and(|sent| sent.fate == Character::Unmatched);
            // Marks age away behind what is over: done, or discarded by an operator.
            let is_over = || {
                tables.effects.iter().any(|effect| effect.id == *id) || ledger.discarded.contains(id.as_str())
            };
            let purged = || world.scenario.has(Mishap::Age) && is_over();
            if mark(tables, id).is_none() && !unmatched && !purged() {
                world.problem(format_args!("I2: {partition} stands at {before}, and {id} has no mark"));
            }
        }
    }
}

fn completeness(world: &ConsumerWorld, tables: &Tables, ledger: &Ledger) {
    let rows = |id: &str| tables.deferred.values().filter(|row| !row.repeat && *row.work.id == *id).count();
    let letters = tables.letters_of(CONSUMER);
    let letters =
        |id: &str| letters.iter().filter(|dead| !dead.row.repeat && *dead.row.work.id == *id).count();
    for ((_, id), mark) in &tables.marks {
        let agrees = match mark.outcome {
            MarkOutcome::Done => rows(id) + letters(id) == 0,
            MarkOutcome::Deferred => (rows(id), letters(id)) == (1, 0),
            MarkOutcome::Dead => rows(id) == 0 && (letters(id) == 1 || ledger.discarded.contains(id)),
        };
        if !agrees {
            world.problem(format_args!(
                "I4: {id} is {:?}, with {} rows and {} letters",
                mark.outcome,
                rows(id),
                letters(id)
            ));
        }
    }
    for row in tables.deferred.values().filter(|row| !row.repeat) {
        if mark(tables, &row.work.id).is_none_or(|mark| mark.outcome != MarkOutcome::Deferred) {
            world.problem(format_args!("I4: {} is deferred without its mark", row.work.id));
        }
    }
}

/// No attempt is counted that was not made: an outage is nobody's. After deaths an attempt is written down
/// before it is made, so where members die there may be more.
fn attempts(world: &ConsumerWorld, tables: &Tables, ledger: &Ledger) {
    if world.members_die() {
        return;
    }
    let deferred = tables.deferred.values();
    for row in deferred.chain(tables.letters_of(CONSUMER).into_iter().map(|letter| &letter.row)) {
        let id = &*row.work.id;
        let runs = ledger.runs.get(id).copied().unwrap_or(0);
        let counted = row.work.attempts + row.earlier_attempts;
        if counted > runs {
            world.problem(format_args!("F50: {id} has {counted} attempts and ran {runs} times"));
        }
    }
}

/// Everything that must hold at the end.
pub(super) fn everything(world: &ConsumerWorld) {
    always(world);
    let tables = world.database.tables();
    let ledger = lock(&world.ledger);
    for (partition, log, saved) in positions(world, &tables) {
        if saved != Some(log.len() as i64) {
            world.problem(format_args!("stuck: {partition} stands at {saved:?} of {}", log.len()));
        }
    }
    for row in tables.deferred.values() {
        world.problem(format_args!("stuck: {} is still deferred, due at {:?}", row.work.id, row.due_at));
    }
    let mut effects: BTreeMap<&str, usize> = BTreeMap::new();
    for effect in &tables.effects {
        *effects.entry(&effect.id).or_insert(0) += 1;
    }
    for (id, sent) in &ledger.sent {
        let done = effects.get(id.as_str()).copied().unwrap_or(0);
        let most = 1 + ledger.repeats.get(id).copied().unwrap_or(0);
        if done > most {
            world.problem(format_args!("I1: {id} ({:?}) has {done} effects", sent.fate));
        }
        let outcome = mark(&tables, id).map(|mark| mark.outcome);
        let ended = match outcome {
            Some(MarkOutcome::Done) => done > 0,
            Some(MarkOutcome::Dead) => done == 0,
            Some(MarkOutcome::Deferred) => true,
            None => {
                let is_over = done > 0 || ledger.discarded.contains(id.as_str());
                sent.fate == Character::Unmatched || (world.scenario.has(Mishap::Age) && is_over)
            }
        };
        if !ended && sent.fate != Character::Unmatched {
            let fate = sent.fate;
            world.problem(format_args!("lost: {id} ({fate:?}) is {outcome:?} with {done} effects"));
        }
    }
    deaths_deserved(world, &tables, &ledger);
    order(world, &tables, &ledger);
}

fn deaths_deserved(world: &ConsumerWorld, tables: &Tables, ledger: &Ledger) {
    for letter in tables.letters_of(CONSUMER) {
        let id = &*letter.row.work.id;
        let fate = ledger.sent.get(id).map_or(Character::Healthy, |sent| sent.fate);
        let deserved = match fate {
            // Where members die of other things too, an innocent may be in hand each time.
            _ if letter.burial.disposition == Disposition::Crashed => world.members_die(),
            // Then a death in between is an attempt beside its own.
            Character::Flaky(_) | Character::FailsLate(_) | Character::Hangs(_) => world.members_die(),
            Character::Doomed | Character::Rejected | Character::Mended | Character::Unmatched => true,
            _ => false,
        };
        if !deserved {
            world.problem(format_args!("F50: {id} ({fate:?}) died of {:?}", letter.burial));
        }
    }
}

/// The first effects of what is kept in order are in the order of their first copies.
fn order(world: &ConsumerWorld, tables: &Tables, ledger: &Ledger) {
    let mut places: BTreeMap<(Partition, String), usize> = BTreeMap::new();
    for (partition, log, _) in positions(world, tables) {
        for (at, id) in log.into_iter().enumerate() {
            places.entry((partition.clone(), id)).or_insert(at);
        }
    }
    // Where the dead let others pass, a replay comes later; that is what was asked for.
    let exempt = |id: &str| {
        let fate = ledger.sent.get(id).map_or(Character::Healthy, |sent| sent.fate);
        let mortal =
            matches!(fate, Character::Doomed | Character::Rejected | Character::Mended | Character::Killer);
        world.scenario.settings.on_dead == OnDead::Continue && (mortal || ledger.died.contains(id))
    };
    let mut last = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for effect in tables.effects.iter().filter(|effect| seen.insert(&effect.id) && !exempt(&effect.id)) {
        let unit = match (world.scenario.order, effect.key.as_deref()) {
            (Order::Key, Some(key)) => (&effect.partition, Some(key)),
            (Order::Partition, _) => (&effect.partition, None),
            _ => continue,
        };
        let place = places.get(&(effect.partition.clone(), effect.id.clone())).copied().unwrap_or(0);
        if let Some((before, id)) = last.insert(unit, (place, &effect.id))
            && place < before
        {
            world.problem(format_args!("I3: {} of {unit:?} ran after {id}", effect.id));
        }
    }
}
