//! The seeded simulation: hundreds of seeds that must be green, and five defects that must not.
//!
//! One seed alone, with its history: `SIM_SEED=17 cargo test -p posthaste-testkit --test simulation one_seed
//! -- --nocapture`, and with `SIM_MUTATION=SkipElders` under a defect; `SIM_VERBOSE=1` adds every call, offer
//! and verdict. More seeds: `SIM_SEEDS=1000..5000`.

use posthaste::mutation::{Mutation, set};
use posthaste_testkit::simulation::{SimulationOutcome, run};
use std::ops::Range;
use std::time::Duration;

/// Seeds of an ordinary run. Each takes some 80 ms of a core in a debug build.
const SEEDS: Range<u64> = 0..300;

/// Seeds within which a defect must show.
const MUTATION_SEEDS: Range<u64> = 0..300;

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
        "seed={} broke {} promises:\n    {}\n  again: SIM_SEED={} cargo test -p posthaste-testkit --test simulation one_seed -- --nocapture",
        outcome.seed,
        outcome.problems.len(),
        first.join("\n    "),
        outcome.seed
    )
}

/// A part of the seeds, so that the harness runs the parts side by side.
fn run_part(part: u64, parts: u64) {
    let mut red = Vec::new();
    let (mut committed, mut deliveries, mut slowest) = (0, 0, (Duration::ZERO, 0));
    for seed in seeds().filter(|seed| seed % parts == part) {
        let outcome = run(seed);
        committed += outcome.committed;
        deliveries += outcome.deliveries;
        slowest = slowest.max((outcome.healed_in, seed));
        if !outcome.problems.is_empty() {
            red.push(describe(&outcome));
        }
    }
    println!("{committed} events committed, {deliveries} deliveries, slowest to heal {slowest:?}");
    assert!(red.is_empty(), "{} seeds are red\n{}", red.len(), red.join("\n"));
}

#[test]
fn even_seeds_are_green() {
    run_part(0, 2);
}

#[test]
fn odd_seeds_are_green() {
    run_part(1, 2);
}

/// The same seed does the same again, or a red one could not be looked at.
#[test]
fn a_seed_repeats_itself() {
    for seed in 0..12 {
        let (once, again) = (run(seed), run(seed));
        assert_eq!(once.history, again.history, "seed {seed}");
        assert_eq!(once.deliveries, again.deliveries, "seed {seed}");
    }
}

/// For a closer look.
#[test]
fn one_seed() {
    let Some(seed) = variable("SIM_SEED") else { return };
    let name: Option<String> = variable("SIM_MUTATION");
    set(Mutation::ALL.into_iter().find(|mutation| Some(format!("{mutation:?}")) == name));
    let outcome = run(seed);
    outcome.history.iter().for_each(|line| println!("{line}"));
    assert!(outcome.problems.is_empty(), "{}", describe(&outcome));
}

fn turns_red(mutation: Mutation) {
    set(Some(mutation));
    let red = MUTATION_SEEDS.map(run).find(|outcome| !outcome.problems.is_empty());
    set(None);
    match red {
        Some(outcome) => println!("{mutation:?} is seen: seed={} {}", outcome.seed, outcome.problems[0]),
        None => panic!("{mutation:?} broke no promise in {MUTATION_SEEDS:?}: the simulation is blind to it"),
    }
}

#[test]
fn settling_before_the_ack_turns_red() {
    turns_red(Mutation::SettleBeforeAck);
}

#[test]
fn ignoring_the_epoch_turns_red() {
    turns_red(Mutation::IgnoreEpoch);
}

#[test]
fn skipping_elders_turns_red() {
    turns_red(Mutation::SkipElders);
}

#[test]
fn passing_an_unsettled_event_turns_red() {
    turns_red(Mutation::PassUnsettled);
}

#[test]
fn counting_attempts_in_an_outage_turns_red() {
    turns_red(Mutation::CountOutages);
}

/// The same for the consumer, on the models of an inbox and a broker.
mod consumer {
    use super::{MUTATION_SEEDS, SimulationOutcome, seeds, variable};
    use posthaste::mutation::{Mutation, set};
    use posthaste_testkit::simulation::consumer::run;

    fn describe(outcome: &SimulationOutcome) -> String {
        super::describe(outcome).replace("one_seed", "consumer::one_seed")
    }

    fn run_part(part: u64) {
        let (mut red, mut effects) = (Vec::new(), 0);
        for outcome in seeds().filter(|seed| seed % 2 == part).map(run) {
            effects += outcome.deliveries;
            if !outcome.problems.is_empty() {
                red.push(describe(&outcome));
            }
        }
        println!("{effects} effects");
        assert!(red.is_empty(), "{} seeds are red\n{}", red.len(), red.join("\n"));
    }

    #[test]
    fn even_seeds_are_green() {
        run_part(0);
    }

    #[test]
    fn odd_seeds_are_green() {
        run_part(1);
    }

    #[test]
    fn a_seed_repeats_itself() {
        for seed in 0..12 {
            assert_eq!(run(seed).history, run(seed).history, "seed {seed}");
        }
    }

    /// For a closer look.
    #[test]
    fn one_seed() {
        let Some(seed) = variable("SIM_SEED") else { return };
        let name: Option<String> = variable("SIM_MUTATION");
        set(Mutation::OF_CONSUMER.into_iter().find(|mutation| Some(format!("{mutation:?}")) == name));
        let outcome = run(seed);
        outcome.history.iter().for_each(|line| println!("{line}"));
        assert!(outcome.problems.is_empty(), "{}", describe(&outcome));
    }

    #[test]
    fn every_mutation_turns_red() {
        for mutation in Mutation::OF_CONSUMER {
            set(Some(mutation));
            let red = MUTATION_SEEDS.map(run).find(|outcome| !outcome.problems.is_empty());
            set(None);
            match red {
                Some(outcome) => {
                    println!("{mutation:?} is seen: seed={} {}", outcome.seed, outcome.problems[0])
                }
                None => panic!(
                    "{mutation:?} broke no promise in {MUTATION_SEEDS:?}: the simulation is blind to it"
                ),
            }
        }
    }
}
