//! The seeded simulation on real files: the testkit's scenarios, chaos and check, with SQLite under them.
//!
//! Time is real here, and so are the threads: a seed repeats what is thrown, not how threads interleave. A
//! red seed may turn green when it is run again; `SIM_SEED=17` runs one alone with its history,
//! `SIM_TIMES=20` that often. `SIM_MUTATION=PassUnsettled` adds a defect, `SIM_VERBOSE=1` every call, offer
//! and verdict, `SIM_SEEDS=100..500` runs others.

mod ground;
mod transaction;

use ground::SqliteGround;
use posthaste::mutation::{Mutation, set};
use posthaste_testkit::simulation::{SimulationOutcome, Tempo, run_on};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Seeds of an ordinary run. Each takes two or three seconds, most of them waiting.
const SEEDS: Range<u64> = 0..48;

/// Seeds within which a defect must show.
const MUTATION_SEEDS: Range<u64> = 0..48;

/// Simulations at once. More, and two cores would have them miss their leases.
const AT_ONCE: usize = 6;

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seeds() -> Range<u64> {
    let range = variable::<String>("SIM_SEEDS").and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    range.unwrap_or(SEEDS)
}

fn describe(outcome: &SimulationOutcome) -> String {
    let first: Vec<&str> = outcome.problems.iter().take(5).map(String::as_str).collect();
    format!(
        "seed={} broke {} promises:\n    {}\n  again: SIM_SEED={} cargo test -p posthaste-sqlite --test simulation one_seed -- --nocapture",
        outcome.seed,
        outcome.problems.len(),
        first.join("\n    "),
        outcome.seed
    )
}

/// One seed on a file of its own, on this thread.
fn run(seed: u64) -> SimulationOutcome {
    run_on(seed, Tempo::Real, SqliteGround::make)
}

/// Seeds side by side, each on a thread of its own, until `look` has seen enough.
fn run_all(seeds: &Range<u64>, mutation: Option<Mutation>, look: impl Fn(SimulationOutcome) -> bool + Sync) {
    let (next, enough) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                // A mutation belongs to a thread.
                set(mutation);
                while !enough.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    enough.fetch_or(look(run(seed)), Ordering::Relaxed);
                }
            });
        }
    });
}

/// Two simulations at once would be twice as many as the machine is good for.
static MACHINE: Mutex<()> = Mutex::new(());

#[test]
fn seeds_are_green() {
    let _machine = MACHINE.lock();
    let (red, sums) = (Mutex::new(Vec::new()), Mutex::new((0, 0, (Duration::ZERO, 0))));
    run_all(&seeds(), None, |outcome| {
        let mut sums = sums.lock().expect("no look panics");
        sums.0 += outcome.committed;
        sums.1 += outcome.deliveries;
        sums.2 = sums.2.max((outcome.healed_in, outcome.seed));
        if !outcome.problems.is_empty() {
            red.lock().expect("no look panics").push(describe(&outcome));
        }
        false
    });
    let (committed, deliveries, slowest) = sums.into_inner().expect("no look panics");
    println!("{committed} events committed, {deliveries} deliveries, slowest to heal {slowest:?}");
    let red = red.into_inner().expect("no look panics");
    assert!(red.is_empty(), "{} seeds are red\n{}", red.len(), red.join("\n"));
}

/// For a closer look.
#[test]
fn one_seed() {
    let Some(seed) = variable("SIM_SEED") else { return };
    let name: Option<String> = variable("SIM_MUTATION");
    set(Mutation::ALL.into_iter().find(|mutation| Some(format!("{mutation:?}")) == name));
    for _ in 0..variable("SIM_TIMES").unwrap_or(1) {
        let outcome = run(seed);
        outcome.history.iter().for_each(|line| println!("{line}"));
        assert!(outcome.problems.is_empty(), "{}", describe(&outcome));
    }
}

fn turns_red(mutation: Mutation) {
    let _machine = MACHINE.lock();
    let red = Mutex::new(None);
    run_all(&MUTATION_SEEDS, Some(mutation), |outcome| {
        let is_red = !outcome.problems.is_empty();
        if is_red {
            red.lock().expect("no look panics").get_or_insert(outcome);
        }
        is_red
    });
    match red.into_inner().expect("no look panics") {
        Some(outcome) => println!("{mutation:?} is seen: seed={} {}", outcome.seed, outcome.problems[0]),
        None => panic!("{mutation:?} broke no promise in {MUTATION_SEEDS:?}: the simulation is blind to it"),
    }
}

#[test]
fn settling_before_the_ack_turns_red() {
    turns_red(Mutation::SettleBeforeAck);
}

#[test]
fn passing_an_unsettled_event_turns_red() {
    turns_red(Mutation::PassUnsettled);
}

#[test]
fn counting_attempts_in_an_outage_turns_red() {
    turns_red(Mutation::CountOutages);
}
