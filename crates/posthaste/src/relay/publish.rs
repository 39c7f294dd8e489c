//! Publishing: which events go into a call, and what the verdicts mean for them.

use super::batch::{Batch, Origin, Pending};
use super::call::{Call, Hand, Manner};
use super::calls::Returned;
use super::destinations::scope;
use super::lane::Lane;
use crate::breaker::Passage;
use crate::lifecycle::{Decision, decide};
use crate::sink::{Failure, Scope, Verdict};
use crate::store::{Death, Deferral, Due, Reason};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedRwLockReadGuard;
use tokio::time::Instant;

/// A deferred event that the sink held is not looked for again before this long: what it is behind is with
/// the sink right now.
const HELD_PAUSE: Duration = Duration::from_millis(20);

/// How often a lane looks whether an event that must be alone with the sinks is back.
const ALONE_PAUSE: Duration = Duration::from_millis(20);

impl Lane {
    pub(super) fn start_publish(&mut self) {
        self.window.hold_blocked();
        if self.destinations.take_closed_anew() {
            self.window.put_aside_closed(|destination| self.destinations.is_closed(destination));
        }
        self.calls.notice_slow(Instant::now(), &mut self.destinations);
        loop {
            let now = Instant::now();
            let most = self.may_publish(now);
            if most == 0 {
                return;
            }
            // Not waited for inside the call: calls of a lane would enter the sink in another order (G3).
            let Ok(company) = Arc::clone(&self.context.process.company).try_read_owned() else {
                return self.calls.pause(ALONE_PAUSE);
            };
            let Some((mut batch, is_trial)) = self.next_batch(most) else { return };
            let manner = self.manner(&mut batch, company);
            self.call(batch, is_trial, manner, now);
        }
    }

    /// How many events the next call may hold: 0 while the breaker is open, the lease is too short, the
    /// sink is paused, the rate is used up or enough calls are in flight.
    fn may_publish(&mut self, now: Instant) -> usize {
        let settings = &self.terms.settings;
        if !self.tenure.is_trusted(now, settings) || !self.is_open() {
            return 0;
        }
        let most = match self.breaker.passage(now) {
            Passage::Shut => return 0,
            Passage::Probe => 1,
            Passage::Free => settings.page_events_max,
        };
        let most = if self.caution.is_one_by_one() { usize::from(self.calls.are_over()) } else { most };
        most.min(self.calls.room(now, settings.calls_in_flight))
    }

    /// The next call's events, and whether they go to one suspect alone.
    fn next_batch(&mut self, most: usize) -> Option<(Batch, bool)> {
        let settings = &self.terms.settings;
        if self.calls.are_crowded(settings.calls_in_flight) && self.window.has_fresh() {
            return self.next_fresh(most);
        }
        let due = self.window.take_due(most.min(settings.due_events_max));
        if !due.is_empty() {
            return Some((due, false));
        }
        self.next_fresh(most)
    }

    fn next_fresh(&mut self, most: usize) -> Option<(Batch, bool)> {
        let destinations = &self.destinations;
        if !destinations.has_suspects() {
            let batch = self.window.take_batch(most, None);
            return (!batch.is_empty()).then_some((batch, false));
        }
        let batch = self.window.take_batch(most, Some(&|name| !destinations.is_suspect(name)));
        if !batch.is_empty() {
            return Some((batch, false));
        }
        if self.calls.are_crowded(self.terms.settings.calls_in_flight) {
            return None;
        }
        let to_try = destinations.suspects().filter(|suspect| !self.calls.is_trying(suspect));
        let mut trials =
            to_try.map(|suspect| (self.window.take_batch(most, Some(&|name| name == suspect)), true));
        trials.find(|(batch, _)| !batch.is_empty())
    }

    fn manner(&self, batch: &mut Batch, company: OwnedRwLockReadGuard<()>) -> Manner {
        if !self.caution.is_one_by_one() {
            return Manner::Beside { _company: company };
        }
        let seq = batch.messages().first().map(|message| message.stored.seq);
        Manner::InHand(Hand {
            seq,
            must_be_alone: seq.is_some_and(|seq| self.caution.is_last_chance(seq, &self.terms.settings)),
            lease: Arc::clone(&self.lease),
            process: self.context.process.clone(),
            trust: self.tenure.trust().clone(),
        })
    }

    fn call(&mut self, batch: Batch, is_trial: bool, manner: Manner, now: Instant) {
        if self.breaker.passage(now) == Passage::Probe {
            self.breaker.probe();
            self.metrics.breaker.set(self.breaker.level());
        }
        self.metrics.attempts.increment(batch.len() as u64);
        let (sink, timeout) = (Arc::clone(&self.context.sink), self.terms.settings.publish_timeout());
        self.calls.begin(Call { batch, sink, timeout, manner }, is_trial, now);
    }

    pub(super) fn on_returned(&mut self, returned: Returned) {
        self.calls.end(&returned);
        let Returned { batch, mut verdicts, took, .. } = returned;
        self.metrics.publish.record(took.as_secs_f64());
        self.window.keys().returned(&batch, self.calls.oldest());
        // A sink that answers too little is treated as one that did not answer for the rest.
        verdicts.resize(
            batch.len(),
            Verdict::Unknown(Failure::of_sink("sink.contract", "the sink gave no verdict")),
        );
        let (now, pauses) = (self.context.store_now(), self.terms.settings.breaker_pauses());
        let (mut latencies, mut outage) = (Vec::with_capacity(batch.len()), None);
        let answered =
            verdicts.iter().any(|verdict| matches!(scope(verdict), Some(Scope::Event | Scope::Destination)));
        for (pending, verdict) in batch.each().zip(verdicts) {
            if !self.destinations.are_well() {
                self.destinations.hear(&pending.message.destination, &verdict, Instant::now(), pauses);
            }
            if verdict == Verdict::Delivered {
                latencies.push(now.0 - pending.message.stored.appended_at.0);
                self.metrics.delivered(now, pending.message.stored.appended_at);
                self.window.delivered(&pending);
            } else if let Some(failure) = self.undelivered(pending, verdict) {
                outage = Some(failure);
            }
        }
        // A probe among them is over, or its destination would be waited for for ever.
        for destination in self.window.take_dropped() {
            self.destinations.ask_later(&destination, Instant::now(), pauses);
        }
        self.metrics.published.increment(latencies.len() as u64);
        self.context.progress.pulse.delivered(latencies.into_iter(), Instant::now());
        match outage {
            Some(failure) => {
                if self.breaker.is_closed() {
                    tracing::warn!(lane = %self.lease.id(), code = %failure.code, error = %failure.message, "publish failed");
                }
                self.context.progress.sink_failed(&failure.code, &failure.message, now);
                self.open_breaker();
                self.give_back_due();
            }
            None if answered => self.close_breaker(),
            // Held, all of it: that says nothing about the sink. A probe that ended so is repeated.
            None if !self.breaker.is_closed() => self.open_breaker(),
            // Nobody is left whose return could change that: asked again at once, it would hold again at
            // once.
            None if self.calls.are_over() || took < HELD_PAUSE => self.calls.pause(HELD_PAUSE),
            None => {}
        }
    }

    /// Handles one event that was not delivered. Answers with the failure if the sink is out of reach.
    fn undelivered(&mut self, pending: Pending, verdict: Verdict) -> Option<Failure> {
        let chance = self.context.clock.chance();
        let route = &pending.tag.route;
        match decide(verdict, pending.tag.attempts, &route.retry, &self.context.classes, chance) {
            Decision::Delivered => self.window.delivered(&pending),
            Decision::Held => self.held(pending),
            Decision::Wait(failure) => {
                if pending.tag.origin == Origin::Deferred && !self.lease.keeps_in_outages() {
                    let deferral = pending.waits(Reason::Outage, Due::In(Duration::ZERO));
                    self.window.defer(pending, deferral);
                } else {
                    self.window.put_back(pending);
                }
                return Some(failure);
            }
            Decision::Defer { reason, attempts, delay, class, failure } => {
                self.metrics.failures.increment(1);
                self.metrics.retries.increment(1);
                let destination = pending.message.destination.clone();
                if reason == Reason::Outage {
                    let pauses = self.terms.settings.breaker_pauses();
                    let now = (Instant::now(), self.context.store_now());
                    self.destinations.close(&destination, &failure, now, pauses);
                }
                let deferral = Deferral::new(route, destination, attempts, reason, Due::In(delay));
                self.window.defer(pending, deferral.after(class, &failure));
            }
            Decision::Dead { attempts, class, failure } => {
                let death = Death::new(Some(route), attempts, class, failure);
                self.died(&pending.message.stored.event, &death);
                self.window.bury(pending, death);
            }
        }
        None
    }

    /// The sink held this event behind an earlier one of its key.
    fn held(&mut self, pending: Pending) {
        if pending.tag.origin == Origin::Deferred {
            // It is still among the deferred, and comes due when the one before it leaves.
            self.window.let_go(&pending);
            return self.deferred.look_after(Instant::now() + HELD_PAUSE);
        }
        let Some(key) = pending.message.order_key() else { return self.window.put_back(pending) };
        if self.window.is_blocked(key) {
            let deferral = pending.waits(Reason::Held, Due::Behind);
            return self.window.defer(pending, deferral);
        }
        // The one before it waits for the sink, died without holding its key, or is in a call that has
        // not come back: try again, but not while the sink would hold it again at once.
        if let Some(newest) = self.calls.newest() {
            self.window.keys().be_shy(key, newest);
        }
        self.window.put_back(pending);
    }

    /// Gives back deferred events that wait in hand, where the store cannot let them wait there: its breaker
    /// has opened, and nobody knows for how long.
    fn give_back_due(&mut self) {
        if self.lease.keeps_in_outages() {
            return;
        }
        let pauses = self.terms.settings.breaker_pauses();
        for pending in self.window.take_waiting_due().each() {
            // A probe among them is over.
            self.destinations.ask_later(&pending.message.destination, Instant::now(), pauses);
            let deferral = pending.waits(Reason::Outage, Due::In(Duration::ZERO));
            self.window.defer_again(pending.message.stored.seq, deferral);
        }
    }

    fn open_breaker(&mut self) {
        if self.breaker.is_closed() {
            tracing::warn!(outbox = %self.context.outbox, lane = %self.lease.id(), "sink out of reach: breaker open, no attempt is counted");
        }
        self.breaker.fail(Instant::now(), self.terms.settings.breaker_pauses());
        self.metrics.breaker.set(self.breaker.level());
    }

    fn close_breaker(&mut self) {
        if !self.breaker.is_closed() {
            tracing::info!(outbox = %self.context.outbox, lane = %self.lease.id(), "sink is back: breaker closed");
            self.context.progress.sink_answered();
            self.breaker.succeed();
            self.metrics.breaker.set(0.0);
            self.deferred.look_by(Instant::now());
        }
    }
}
