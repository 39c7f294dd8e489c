//! The deferred: looking for events whose time has come.
//!
//! One batch at a time, small, in calls of their own: a hundred thousand failing events cost fresh ones
//! nothing (F51). While a destination's breaker is open its events are left out; when it is time to
//! probe, one of them is asked for by name. A probe may take as long as a publish does; others do not wait
//! for it: its row is left out with its destination, and what is behind it in its key is not due.

use super::arrival::Fate;
use super::batch::Origin;
use super::destinations::Destinations;
use super::lane::{Lane, ended};
use crate::breaker::Passage;
use crate::store::{DueBatch, DueEvent, DueQuery, Lease, StoreError};
use crate::task::{Task, spawn};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long after a look that failed the next one is.
const FAILED_PAUSE: Duration = Duration::from_millis(250);

pub(super) struct Deferred {
    looking: Option<Task<Result<DueBatch, StoreError>>>,
    /// The destination that the look is to probe.
    probing: Option<String>,
    /// Whether the last look was a probe.
    probed_last: bool,
    next_look: Instant,
    /// Whether the last look found nothing, not even for later.
    are_none: bool,
    /// The newest that was taken in hand.
    index: u32,
}

impl Deferred {
    pub(super) fn new() -> Self {
        Self {
            looking: None,
            probing: None,
            probed_last: false,
            next_look: Instant::now(),
            are_none: false,
            index: 0,
        }
    }

    /// Whether there are none, as far as the last look could see.
    pub(super) fn are_none(&self) -> bool {
        self.are_none
    }

    /// The next look is at this time, or earlier if it was to be.
    pub(super) fn look_by(&mut self, at: Instant) {
        self.next_look = self.next_look.min(at);
    }

    /// The longest pause may have become shorter meanwhile. What failed is not asked sooner for that.
    pub(super) fn hurry(&mut self, now: Instant, most: Duration) {
        self.look_by(now + most.max(FAILED_PAUSE));
    }

    /// The next look is not before this time.
    pub(super) fn look_after(&mut self, at: Instant) {
        self.next_look = self.next_look.max(at);
    }

    /// Which destination to probe by the next look, if any. Many dead ones, each to be probed now and then,
    /// leave time for the others' deferred events.
    fn choose_probe(&mut self, destinations: &Destinations, now: Instant) -> Option<String> {
        let others_first = self.probed_last && now >= self.next_look;
        let probe = if others_first { None } else { destinations.to_probe(now) };
        self.probed_last = probe.is_some();
        probe
    }

    fn begin(&mut self, lease: &Arc<dyn Lease>, query: DueQuery) {
        self.probing.clone_from(&query.only_destination);
        let lease = Arc::clone(lease);
        self.looking = Some(spawn("due", async move { lease.due(query).await }));
    }

    pub(super) async fn ended(&mut self) -> Result<DueBatch, StoreError> {
        ended(&mut self.looking).await
    }

    /// What a look at all of them says about the next one.
    fn seen(&mut self, batch: &DueBatch, is_everything: bool, now: Instant, most: Duration) {
        self.are_none = is_everything && batch.events.is_empty() && batch.next_in.is_none();
        let is_full = !batch.events.is_empty();
        let pause = if is_full { Duration::ZERO } else { batch.next_in.unwrap_or(most).min(most) };
        self.next_look = now + pause.max(Duration::from_millis(1));
    }
}

impl Lane {
    fn may_look(&self, now: Instant) -> bool {
        // A settlement on its way, or to be tried again, may hold what the last look found.
        let unsettled = self.window.has_outcome() || self.settling.is_owed();
        let busy = self.deferred.looking.is_some()
            || unsettled
            || self.window.due_in_hand() > self.destinations.probes();
        !busy && self.is_open() && self.may_fetch(now)
    }

    pub(super) fn looks_at(&self, now: Instant) -> Option<Instant> {
        self.may_look(now).then_some(self.deferred.next_look)
    }

    pub(super) fn start_look(&mut self) {
        let now = Instant::now();
        if !self.may_look(now) {
            return;
        }
        let probe = self.deferred.choose_probe(&self.destinations, now);
        if probe.is_none() && now < self.deferred.next_look {
            return;
        }
        let settings = &self.terms.settings;
        let is_single = probe.is_some() || self.claims_a_probe(now);
        let closed = self.destinations.closed().filter(|name| Some(*name) != probe.as_ref());
        let query = DueQuery {
            events: if is_single { 1 } else { settings.due_events_max },
            bytes: settings.page_bytes_max / 2,
            closed_destinations: closed.cloned().collect(),
            paused_routes: self.terms.paused_routes().to_vec(),
            only_destination: probe,
        };
        self.deferred.begin(&self.lease, query);
    }

    /// Whether the next event is to find out if the sink is back, and what would wait behind it cannot wait
    /// in hand.
    fn claims_a_probe(&self, now: Instant) -> bool {
        self.breaker.passage(now) == Passage::Probe && !self.lease.keeps_in_outages()
    }

    pub(super) fn on_due(&mut self, result: Result<DueBatch, StoreError>) -> Result<(), StoreError> {
        let (now, pauses) = (Instant::now(), self.terms.settings.breaker_pauses());
        let probed = self.deferred.probing.take();
        let batch = match result {
            Ok(batch) => batch,
            Err(error) => {
                self.deferred.next_look = now + FAILED_PAUSE;
                if let Some(destination) = &probed {
                    // Not asked after all: later, or the next turn would ask again at once.
                    self.destinations.ask_later(destination, now, pauses);
                }
                return self.tolerate(error, "looking for deferred events");
            }
        };
        let Some(probed) = probed else {
            let is_everything = self.destinations.are_open() && self.terms.paused_routes().is_empty();
            self.deferred.seen(&batch, is_everything, now, self.lease.look_max());
            self.receive_due(batch.events);
            return Ok(());
        };
        if batch.events.is_empty() {
            // Nothing waits for it any more: fresh events will show whether it is back.
            self.destinations.forget(&probed);
        }
        match self.receive_due(batch.events) {
            // Routes may have changed since it was put aside: what goes elsewhere now tells nothing of this
            // one. Then ordinary looks sort them out, and its own events show how it is.
            Some(other) if other != probed => self.destinations.forget(&probed),
            Some(_) => self.destinations.probe(&probed),
            None => self.destinations.ask_later(&probed, now, pauses),
        }
        Ok(())
    }

    /// Takes deferred events in hand, and answers with where the first of them goes. Behind one that cannot
    /// be published now and holds its key, the rest of the key stays where it is.
    fn receive_due(&mut self, events: Vec<DueEvent>) -> Option<String> {
        let (mut first, mut held) = (None, FxHashSet::default());
        for DueEvent { stored, attempts, .. } in events {
            if stored.event.key.as_ref().is_some_and(|key| held.contains(key)) {
                continue;
            }
            self.deferred.index += 1;
            let (key, holds) = match self.encode(stored, Origin::Deferred, self.deferred.index, attempts) {
                Fate::Publish(pending) => {
                    first.get_or_insert_with(|| pending.message.destination.clone());
                    self.window.add_due(pending);
                    continue;
                }
                Fate::Defer(stored, deferral) => {
                    let holds = deferral.holds;
                    self.window.defer_again(stored.seq, deferral);
                    (stored.event.key, holds)
                }
                Fate::Dead(stored, death) => {
                    let holds = death.holds;
                    self.died(&stored.event, &death);
                    self.window.bury_deferred(stored.seq, death);
                    (stored.event.key, holds)
                }
            };
            held.extend(key.filter(|_| holds));
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn looks_are_as_far_apart_as_the_store_says_and_a_shorter_pause_holds_at_once() {
        let (mut deferred, now) = (Deferred::new(), Instant::now());
        let (minute, nothing) = (Duration::from_secs(60), DueBatch::default());
        deferred.seen(&nothing, true, now, minute);
        assert_eq!(deferred.next_look, now + minute);
        deferred.hurry(now, minute);
        assert_eq!(deferred.next_look, now + minute, "nothing changed");
        let later = DueBatch { next_in: Some(minute * 2), ..DueBatch::default() };
        deferred.seen(&later, true, now, minute);
        assert_eq!(deferred.next_look, now + minute, "never longer than the longest");
        deferred.hurry(now, Duration::from_secs(1));
        assert_eq!(deferred.next_look, now + Duration::from_secs(1));
        deferred.hurry(now, Duration::from_millis(5));
        assert_eq!(deferred.next_look, now + FAILED_PAUSE);
    }
}
