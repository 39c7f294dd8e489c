//! The deferred: looking for events whose time has come.
//!
//! One batch at a time, small, in calls of their own: a hundred thousand failing events cost fresh ones
//! nothing (F51). While a destination's breaker is open its events are left out; when it is time to
//! probe, one of them is asked for by name. A probe may take as long as a publish does; others do not wait
//! for it: its row is left out with its destination, and what is behind it in its key is not due.

use super::arrival::Fate;
use super::batch::Origin;
use super::breaker::Passage;
use super::lane::{Lane, alive};
use crate::store::{DueBatch, DueEvent, DueQuery, StoreError};
use crate::task::{TaskDied, spawn};
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest pause between two looks: how long a replay by an operator waits at most without a wakeup.
const LOOK_MAX: Duration = Duration::from_secs(2);

impl Lane {
    pub(super) fn may_look(&self, now: Instant) -> bool {
        // A settlement on its way, or to be tried again, may hold what the last look found.
        let unsettled = self.window.has_outcome() || self.settlement.is_some();
        let busy = self.looking.is_some() || unsettled || self.window.due_in_hand() > self.probes_in_hand();
        !busy && self.is_open() && self.may_fetch(now)
    }

    pub(super) fn start_look(&mut self) {
        let now = Instant::now();
        if !self.may_look(now) {
            return;
        }
        // Many dead destinations, each to be probed now and then, leave time for the others' deferred events.
        let others_first = self.probed_last && now >= self.next_look;
        let probe = if others_first { None } else { self.destination_to_probe(now) };
        self.probed_last = probe.is_some();
        if probe.is_none() && now < self.next_look {
            return;
        }
        let query = DueQuery {
            events: if probe.is_some() || self.claims_a_probe(now) {
                1
            } else {
                self.settings.due_events_max
            },
            bytes: self.settings.page_bytes_max / 2,
            closed_destinations: self
                .destinations
                .keys()
                .filter(|d| Some(*d) != probe.as_ref())
                .cloned()
                .collect(),
            paused_routes: self.controls.paused_routes.clone(),
            only_destination: probe.clone(),
        };
        self.probing_destination = probe;
        let lease = Arc::clone(&self.lease);
        self.looking = Some(spawn("due", async move { lease.due(query).await }));
    }

    /// Whether the next event is to find out if the sink is back, and what would wait behind it cannot wait in hand.
    fn claims_a_probe(&self, now: Instant) -> bool {
        self.passage(now) == Passage::Probe && !self.lease.keeps_in_outages()
    }

    /// Probes of destinations that have not come back: one event each. It may say too few, when something
    /// else was heard of the destination meanwhile; then a look waits for the probe.
    fn probes_in_hand(&self) -> usize {
        self.destinations.values().filter(|breaker| breaker.is_probing()).count()
    }

    fn destination_to_probe(&self, now: Instant) -> Option<String> {
        let due = self.destinations.iter().find(|(_, breaker)| breaker.passage(now) == Passage::Probe);
        due.map(|(destination, _)| destination.clone())
    }

    pub(super) fn on_due(
        &mut self,
        result: Result<Result<DueBatch, StoreError>, TaskDied>,
    ) -> Result<(), StoreError> {
        let now = Instant::now();
        let probed = self.probing_destination.take();
        let batch = match alive(result) {
            Ok(batch) => batch,
            Err(error) => {
                self.next_look = now + Duration::from_millis(250);
                if let Some(destination) = &probed {
                    // Not asked after all: later, or the next turn would ask again at once.
                    self.ask_later(destination, now);
                }
                return self.tolerate(error, "looking for deferred events");
            }
        };
        match &probed {
            Some(destination) if batch.events.is_empty() => {
                // Nothing waits for it any more: fresh events will show whether it is back.
                self.destinations.remove(destination);
            }
            Some(_) => {}
            None => {
                let everything = self.destinations.is_empty() && self.controls.paused_routes.is_empty();
                self.nothing_deferred = everything && batch.events.is_empty() && batch.next_in.is_none();
                let full = !batch.events.is_empty();
                let pause =
                    if full { Duration::ZERO } else { batch.next_in.unwrap_or(LOOK_MAX).min(LOOK_MAX) };
                self.next_look = now + pause.max(Duration::from_millis(1));
            }
        }
        let first = self.receive_due(batch.events);
        if let Some(destination) = probed {
            match (first, self.destinations.get_mut(&destination)) {
                // Routes may have changed since it was put aside: what goes elsewhere now tells nothing of this one.
                // Then ordinary looks sort them out, and its own events show how it is.
                (Some(other), _) if other != destination => drop(self.destinations.remove(&destination)),
                (Some(_), Some(breaker)) => breaker.probe(),
                _ => self.ask_later(&destination, now),
            }
        }
        Ok(())
    }

    pub(super) fn ask_later(&mut self, destination: &str, now: Instant) {
        let initial = Duration::from_millis(self.settings.breaker_initial_ms);
        let max = Duration::from_millis(self.settings.breaker_max_ms);
        if let Some(breaker) = self.destinations.get_mut(destination) {
            breaker.fail(now, initial, max);
        }
    }

    /// Takes deferred events in hand, and answers with where the first of them goes. Behind one that cannot be
    /// published now and holds its key, the rest of the key stays where it is.
    fn receive_due(&mut self, events: Vec<DueEvent>) -> Option<String> {
        let (mut first, mut held) = (None, FxHashSet::default());
        for DueEvent { stored, attempts, .. } in events {
            if stored.event.key.as_ref().is_some_and(|key| held.contains(key)) {
                continue;
            }
            self.due_index += 1;
            let (key, holds) = match self.encode(stored, Origin::Deferred, self.due_index, attempts) {
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
