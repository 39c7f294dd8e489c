//! The calls that are with the sink, and the destinations that are under suspicion.
//!
//! A call comes back when its slowest message is answered. A destination that never answers (a partition
//! without a leader, a host behind a firewall) would so hold up whatever shares calls with it, and a few such
//! calls are all that a lane may have. So a call that is not back after [`SLOW`] no longer counts, and its
//! destinations are suspects: each of them is sent to in calls of its own, one at a time, until something is
//! heard of it. One that was merely in bad company is cleared by its next answer; the other keeps its events
//! waiting until its breaker opens. Verdicts message by message would need no suspicion, and were refused:
//! the order of keys rests on calls that return as a whole (G3).

use super::batch::Batch;
use rustc_hash::FxHashSet;
use std::time::Duration;
use tokio::time::Instant;

/// Far above what a broker needs in health, far below the delivery timeout of one that is silent.
const SLOW: Duration = Duration::from_millis(250);

/// Calls with the sink, slow ones included, in multiples of those that may start.
const MOST_FACTOR: usize = 16;

/// Destinations of one call that are remembered. With more of them nobody can tell which one is silent.
const DESTINATIONS_MAX: usize = 64;

struct Begun {
    number: u64,
    at: Instant,
    destinations: Vec<String>,
    is_slow: bool,
    /// It goes to one suspect alone.
    is_trial: bool,
}

#[derive(Default)]
pub(super) struct Calls {
    started: u64,
    /// Those that are with the sink, in order.
    begun: Vec<Begun>,
    suspects: FxHashSet<String>,
}

impl Calls {
    /// A call begins; the number by which it comes back.
    pub(super) fn begin(&mut self, at: Instant, batch: &Batch, is_trial: bool) -> u64 {
        self.started += 1;
        let (number, destinations) = (self.started, distinct(batch));
        self.begun.push(Begun { number, at, destinations, is_slow: false, is_trial });
        number
    }

    pub(super) fn end(&mut self, number: u64) {
        self.begun.retain(|call| call.number != number);
    }

    /// The oldest call that is with the sink.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.begun.first().map(|call| call.number)
    }

    /// The newest call, as long as one is with the sink.
    pub(super) fn newest(&self) -> Option<u64> {
        (!self.begun.is_empty()).then_some(self.started)
    }

    /// Suspects the destinations of calls that have become slow.
    pub(super) fn notice(&mut self, now: Instant) {
        for call in self.begun.iter_mut().filter(|call| !call.is_slow && now >= call.at + SLOW) {
            call.is_slow = true;
            self.suspects.extend(call.destinations.iter().cloned());
        }
    }

    /// The destination answered, or its breaker is open now.
    pub(super) fn clear(&mut self, destination: &str) {
        self.suspects.remove(destination);
    }

    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    pub(super) fn suspects(&self) -> &FxHashSet<String> {
        &self.suspects
    }

    /// Suspects that are not being tried.
    pub(super) fn to_try(&self) -> Vec<String> {
        let tried = |name: &String| self.begun.iter().any(|c| c.is_trial && c.destinations.contains(name));
        self.suspects.iter().filter(|name| !tried(name)).cloned().collect()
    }

    /// Whether one more may begin, where `most` may be with the sink in health.
    pub(super) fn has_room(&self, most: usize) -> bool {
        let quick = self.begun.iter().filter(|call| !call.is_slow && !call.is_trial).count();
        quick < most && self.begun.len() < most * MOST_FACTOR
    }

    /// Whether few places are left. They are for fresh events of destinations that answer: probes and trials of many
    /// silent ones must not take them all.
    pub(super) fn is_crowded(&self, most: usize) -> bool {
        self.begun.len() + most >= most * MOST_FACTOR
    }

    /// When the next call becomes slow.
    pub(super) fn next_slow(&self) -> Option<Instant> {
        self.begun.iter().filter(|call| !call.is_slow).map(|call| call.at + SLOW).min()
    }
}

/// Where a call goes. Most go to one place, or to few in runs.
fn distinct(batch: &Batch) -> Vec<String> {
    let (mut last, mut seen) = ("", FxHashSet::default());
    for destination in batch.destinations() {
        if destination != last {
            last = destination;
            seen.insert(destination);
        }
        if seen.len() > DESTINATIONS_MAX {
            return Vec::new();
        }
    }
    seen.into_iter().map(str::to_owned).collect()
}
