//! The destinations of a sink: which of them are out of reach, and which are under suspicion.
//!
//! One that is out of reach has a breaker of its own. Its events wait among the deferred, and one of them is
//! the probe that finds out whether it is back.
//!
//! A call comes back when its slowest message is answered. A destination that never answers (a partition
//! without a leader, a host behind a firewall) would so hold up whatever shares calls with it, and a few such
//! calls are all that a lane may have. So the destinations of a slow call are suspects: each of them is sent
//! to in calls of its own, one at a time, until something is heard of it. One that was merely in bad company
//! is cleared by its next answer; the other keeps its events waiting until its breaker opens. Verdicts
//! message by message would need no suspicion, and were refused: the order of keys rests on calls that return
//! as a whole (G3).

use crate::admin::OutOfReach;
use crate::breaker::{Breaker, Passage, Pauses};
use crate::event::Timestamp;
use crate::health::progress::Progress;
use crate::sink::{Failure, Scope, Verdict, shown};
use crate::store::LaneId;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use tokio::time::Instant;

/// Destinations whose breakers are remembered at once. More dead destinations than this are tried
/// again a little earlier than they should be.
const CLOSED_MAX: usize = 1_024;

pub(super) struct Destinations {
    lane: LaneId,
    /// Those that are out of reach.
    closed: FxHashMap<String, Breaker>,
    /// Whether one was closed since [`Destinations::take_closed_anew`] looked.
    closed_anew: bool,
    suspects: FxHashSet<String>,
    /// Where others see which are out of reach.
    progress: Arc<Progress>,
}

impl Destinations {
    pub(super) fn new(lane: LaneId, progress: Arc<Progress>) -> Self {
        let (closed, suspects) = (FxHashMap::default(), FxHashSet::default());
        Self { lane, closed, closed_anew: false, suspects, progress }
    }

    /// Whether nothing is known against any of them.
    pub(super) fn are_well(&self) -> bool {
        self.closed.is_empty() && self.suspects.is_empty()
    }

    pub(super) fn are_open(&self) -> bool {
        self.closed.is_empty()
    }

    pub(super) fn is_closed(&self, destination: &str) -> bool {
        self.closed.contains_key(destination)
    }

    pub(super) fn closed(&self) -> impl Iterator<Item = &String> {
        self.closed.keys()
    }

    pub(super) fn take_closed_anew(&mut self) -> bool {
        std::mem::take(&mut self.closed_anew)
    }

    /// It is out of reach: its breaker opens. `at` is the same moment by the store's clock.
    pub(super) fn close(
        &mut self,
        destination: &str,
        failure: &Failure,
        (now, at): (Instant, Timestamp),
        pauses: Pauses,
    ) {
        self.note(destination, failure, at);
        if let Some(breaker) = self.closed.get_mut(destination) {
            breaker.fail(now, pauses);
            return breaker.wait_at_least(now, failure.wait_at_least());
        }
        tracing::warn!(
            lane = %self.lane, destination = %shown(destination), code = %failure.code, error = %failure.message,
            "destination out of reach: its events wait, no attempt is counted"
        );
        if self.closed.len() >= CLOSED_MAX
            && let Some((other, _)) = self.closed.iter().find(|(_, breaker)| !breaker.is_probing())
        {
            let other = other.clone();
            self.remove(&other);
        }
        let mut breaker = Breaker::opened(now, pauses.initial);
        breaker.wait_at_least(now, failure.wait_at_least());
        self.closed.insert(destination.to_owned(), breaker);
        self.closed_anew = true;
    }

    /// What a verdict says of its destination. One that judged the event itself is back; one that was not
    /// asked after all is asked again later.
    pub(super) fn hear(&mut self, destination: &str, verdict: &Verdict, now: Instant, pauses: Pauses) {
        if *verdict != Verdict::Held {
            self.suspects.remove(destination);
        }
        match scope(verdict) {
            Some(Scope::Event) => {
                if self.remove(destination) {
                    tracing::info!(lane = %self.lane, destination = %shown(destination), "destination is back");
                }
            }
            // Whatever the verdict makes of the event, a probe that met the outage again is over.
            Some(Scope::Destination | Scope::Sink) | None => self.ask_later(destination, now, pauses),
        }
    }

    /// One whose probe is due.
    pub(super) fn to_probe(&self, now: Instant) -> Option<String> {
        let due = self.closed.iter().find(|(_, breaker)| breaker.passage(now) == Passage::Probe);
        due.map(|(destination, _)| destination.clone())
    }

    /// A probe is on its way.
    pub(super) fn probe(&mut self, destination: &str) {
        if let Some(breaker) = self.closed.get_mut(destination) {
            breaker.probe();
        }
    }

    /// It was not asked after all, or did not answer.
    pub(super) fn ask_later(&mut self, destination: &str, now: Instant, pauses: Pauses) {
        if let Some(breaker) = self.closed.get_mut(destination) {
            breaker.fail(now, pauses);
        }
    }

    /// Fresh events will show how it is.
    pub(super) fn forget(&mut self, destination: &str) {
        self.remove(destination);
    }

    fn remove(&mut self, destination: &str) -> bool {
        self.progress.away().destinations.remove(destination);
        self.closed.remove(destination).is_some()
    }

    /// Since the first failure, with the last one.
    fn note(&self, destination: &str, failure: &Failure, at: Timestamp) {
        let destinations = &mut self.progress.away().destinations;
        let since = destinations.get(destination).map_or(at, |before| before.since);
        let away = OutOfReach::new(since, &failure.code, &failure.message);
        destinations.insert(destination.to_owned(), away);
    }

    /// Probes that have not come back: one event each. It may say too few, when something else was heard of
    /// the destination meanwhile; then a look waits for the probe.
    pub(super) fn probes(&self) -> usize {
        self.closed.values().filter(|breaker| breaker.is_probing()).count()
    }

    /// When the next probe is due, of those that are not yet.
    pub(super) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        self.closed.values().filter_map(Breaker::wakes_at).filter(|at| *at > now).min()
    }

    pub(super) fn suspect(&mut self, destinations: &[String]) {
        self.suspects.extend(destinations.iter().cloned());
    }

    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    pub(super) fn is_suspect(&self, destination: &str) -> bool {
        self.suspects.contains(destination)
    }

    pub(super) fn suspects(&self) -> impl Iterator<Item = &String> {
        self.suspects.iter()
    }
}

/// Whom a verdict is about; a delivery, like a rejection, about the event. `None`: it was not sent.
pub(super) fn scope(verdict: &Verdict) -> Option<Scope> {
    match verdict {
        Verdict::Delivered => Some(Scope::Event),
        Verdict::Retry(failure) | Verdict::Rejected(failure) | Verdict::Unknown(failure) => {
            Some(failure.scope)
        }
        Verdict::Held => None,
    }
}
