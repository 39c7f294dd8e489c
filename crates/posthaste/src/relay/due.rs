//! The deferred: looking for events whose time has come.
//!
//! One batch at a time, small, in calls of their own: a hundred thousand failing events cost fresh ones
//! nothing (F51). While a destination's breaker is open its events are left out; when it is time to
//! probe, one of them is asked for by name. A probe may take as long as a publish does; others do not wait
//! for it: its row is left out with its destination, and what is behind it in its key is not due.

use super::breaker::Passage;
use super::lane::{Lane, alive};
use super::read::no_route;
use super::window::{Origin, Pending};
use crate::retry::Permanent;
use crate::route::{OnDead, Order, Refused, Route, RouteTable};
use crate::sink::Failure;
use crate::store::{Death, Deferral, Due, DueBatch, DueEvent, DueQuery, ErrorClass, Reason, StoreError};
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
        let pending = self.prepare_all(batch.events);
        if let Some(destination) = probed {
            // Routes may have changed since it was put aside: what goes elsewhere now tells nothing of this one.
            // Then ordinary looks sort them out, and its own events show how it is.
            let asks = pending.first().is_none_or(|pending| pending.message.destination == destination);
            match self.destinations.get_mut(&destination) {
                _ if !asks => drop(self.destinations.remove(&destination)),
                Some(breaker) if !pending.is_empty() => breaker.probe(),
                _ => self.ask_later(&destination, now),
            }
        }
        self.window.add_due(pending);
        Ok(())
    }

    pub(super) fn ask_later(&mut self, destination: &str, now: Instant) {
        let initial = Duration::from_millis(self.settings.breaker_initial_ms);
        let max = Duration::from_millis(self.settings.breaker_max_ms);
        if let Some(breaker) = self.destinations.get_mut(destination) {
            breaker.fail(now, initial, max);
        }
    }

    /// Encodes deferred events again. Behind one that dies here and holds its key, the rest of the key stays
    /// where it is.
    fn prepare_all(&mut self, events: Vec<DueEvent>) -> Vec<Pending> {
        let routes = self.routes.clone();
        let mut held: FxHashSet<String> = FxHashSet::default();
        let mut pending = Vec::with_capacity(events.len());
        for due in events {
            let key = due.stored.event.key.clone();
            if key.as_ref().is_some_and(|key| held.contains(key)) {
                continue;
            }
            match self.prepare(due, &routes) {
                Ok(event) => pending.push(event),
                Err(holds) => held.extend(key.filter(|_| holds)),
            }
        }
        pending
    }

    /// Encodes a deferred event again, under the routes of now. An error: it died, or cannot be published as it is;
    /// and whether it holds back its key.
    fn prepare(&mut self, due: DueEvent, routes: &RouteTable) -> Result<Pending, bool> {
        let DueEvent { stored, attempts, .. } = due;
        let seq = stored.seq;
        let Some(route) = routes.find(&self.lease.id().sink, &stored.event.topic) else {
            let death = no_route(attempts);
            self.died(&stored.event, &death);
            self.window.bury_deferred(seq, death);
            return Err(false);
        };
        if let Some(death) = self.killer(&stored, route) {
            let holds = death.holds;
            self.died(&stored.event, &death);
            self.window.bury_deferred(seq, death);
            return Err(holds);
        }
        match route.encode(stored, &self.context.service, &self.context.limits) {
            Ok(message) => {
                self.due_index += 1;
                Ok(Pending {
                    origin: Origin::Deferred,
                    index: self.due_index,
                    attempts,
                    message,
                    route: Arc::clone(route),
                })
            }
            Err(refusal) => {
                let Refused { stored, failure } = *refusal;
                if let Some(deferral) = self.refused_again(route, attempts, &failure) {
                    let holds = deferral.holds;
                    self.window.defer_unsent(seq, deferral);
                    return Err(holds);
                }
                let counted = route.retry.permanent == Permanent::Retry;
                let death = Death {
                    attempts: attempts.saturating_add(u32::from(counted)),
                    class: ErrorClass::Permanent,
                    code: failure.code.into_owned(),
                    error: failure.message,
                    route: Arc::clone(&route.name),
                    holds: route.on_dead == OnDead::Hold && route.order == Order::Key,
                };
                let holds = death.holds;
                self.died(&stored.event, &death);
                self.window.bury_deferred(seq, death);
                Err(holds)
            }
        }
    }

    /// An event that cannot be published as it is, where its route counts that as an attempt like any other.
    pub(super) fn refused_again(
        &self,
        route: &Arc<Route>,
        attempts: u32,
        failure: &Failure,
    ) -> Option<Deferral> {
        let attempts = attempts.saturating_add(1);
        if !route.retry.outlives_permanent(attempts) {
            return None;
        }
        self.metrics.failures.increment(1);
        self.metrics.retries.increment(1);
        let delay = route.retry.delay(attempts, self.context.clock.chance());
        Some(Deferral {
            attempts,
            class: Some(ErrorClass::Permanent),
            error: Some(format!("{}: {}", failure.code, failure.message)),
            ..self.waiting(route, String::new(), Reason::Retry, Due::In(delay))
        })
    }
}
