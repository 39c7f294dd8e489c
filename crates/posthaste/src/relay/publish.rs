//! Publishing: which events go into a call, and what the verdicts mean for them.

use super::batch::{Batch, Origin, Pending};
use super::breaker::{Breaker, Passage};
use super::lane::Lane;
use crate::crash_point;
use crate::lifecycle::{Decision, decide};
use crate::sink::{Failure, Message, Scope, Verdict, shown};
use crate::store::{Care, Death, Deferral, Due, Reason};
use futures_util::FutureExt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::Instant;

/// Destinations whose breakers are remembered at once. More dead destinations than this are tried
/// again a little earlier than they should be.
const DESTINATIONS_MAX: usize = 1_024;

/// A deferred event that the sink held is not looked for again before this long: what it is behind is with
/// the sink right now.
const HELD_PAUSE: Duration = Duration::from_millis(20);

/// A call that came back.
pub(super) struct Returned {
    call: u64,
    batch: Batch,
    verdicts: Vec<Verdict>,
    took: Duration,
}

impl Lane {
    pub(super) fn start_publish(&mut self) {
        self.hold_blocked();
        self.put_aside_closed();
        self.begun.notice(Instant::now());
        loop {
            let now = Instant::now();
            let most = self.may_publish(now);
            if most == 0 {
                return;
            }
            let Some((batch, is_trial)) = self.next_batch(most) else { return };
            self.call(batch, is_trial, now);
        }
    }

    /// The next call's events, and whether they go to one suspect alone.
    fn next_batch(&mut self, most: usize) -> Option<(Batch, bool)> {
        if self.begun.is_crowded(self.settings.calls_in_flight) && self.window.has_fresh() {
            return self.next_fresh(most);
        }
        let due = self.window.take_due(most.min(self.settings.due_events_max));
        if !due.is_empty() {
            return Some((due, false));
        }
        self.next_fresh(most)
    }

    fn next_fresh(&mut self, most: usize) -> Option<(Batch, bool)> {
        if !self.begun.has_suspects() {
            let batch = self.window.take_batch(most, None);
            return (!batch.is_empty()).then_some((batch, false));
        }
        let suspects = self.begun.suspects();
        let batch = self.window.take_batch(most, Some(&|name| !suspects.contains(name)));
        if !batch.is_empty() {
            return Some((batch, false));
        }
        if self.begun.is_crowded(self.settings.calls_in_flight) {
            return None;
        }
        let mut trials = self
            .begun
            .to_try()
            .into_iter()
            .map(|suspect| (self.window.take_batch(most, Some(&|name| name == suspect)), true));
        trials.find(|(batch, _)| !batch.is_empty())
    }

    /// How many events the next call may hold: 0 while the breaker is open, the lease is too short, the
    /// sink is paused, the rate is used up or enough calls are in flight. And while one is back and not
    /// handled: what follows of a key that failed in it must not start (G3).
    fn may_publish(&mut self, now: Instant) -> usize {
        if self.answered.is_some() || now < self.next_publish {
            return 0;
        }
        if !self.begun.has_room(self.settings.calls_in_flight) || !self.is_trusted(now) || !self.is_open() {
            return 0;
        }
        let most = match self.passage(now) {
            Passage::Shut => return 0,
            Passage::Probe => 1,
            Passage::Free => self.settings.page_events_max,
        };
        let most =
            if matches!(self.care, Care::OneByOne { .. }) { usize::from(!self.is_calling()) } else { most };
        match &mut self.rate {
            Some(rate) => most.min(rate.allowance(now)),
            None => most,
        }
    }

    fn call(&mut self, mut batch: Batch, is_trial: bool, now: Instant) {
        if self.passage(now) == Passage::Probe {
            self.breaker.probe();
            self.metrics.breaker.set(self.breaker.level());
        }
        if let Some(rate) = &mut self.rate {
            rate.spend(batch.len());
        }
        self.metrics.attempts.increment(batch.len() as u64);
        let sink = Arc::clone(&self.context.sink);
        let careful = matches!(self.care, Care::OneByOne { .. }).then(|| Arc::clone(&self.lease));
        let (one_hand, trust) = (Arc::clone(&self.context.one_hand), self.trusted_until());
        let timeout = self.settings.publish_timeout();
        let call = self.begun.begin(now, &batch, is_trial);
        let published = async move {
            let messages = batch.messages();
            let mut hand = None;
            if let Some(lease) = &careful {
                // One event in hand in the whole process: a death must not be charged to what another
                // lane had in hand at that moment.
                hand = Some(one_hand.lock_owned().await);
                if Instant::now() + timeout > *trust.borrow() {
                    let failure = Failure::of_sink("relay.lease_short", "the lease is too short by now");
                    return (batch, vec![Verdict::Retry(failure)]);
                }
                let seq = messages.first().map(|message| message.stored.seq);
                // CRASH(publish.in_hand): the event is written down as in hand; if it kills the relay
                // now, the next owner charges it (F21).
                let written = lease.take_in_hand(seq).await;
                crash_point!("publish.in_hand");
                if let Err(error) = written {
                    let failure = Failure::of_sink("relay.in_hand", error.to_string());
                    return (batch, vec![Verdict::Retry(failure)]);
                }
            }
            poison(messages);
            let verdicts = match tokio::time::timeout(timeout, sink.publish(messages)).await {
                Ok(verdicts) => verdicts,
                Err(_) => unanswered(messages.len(), timeout),
            };
            // CRASH(publish.acknowledged): the broker has the events, the store does not know. The next
            // owner publishes them again: a duplicate, never a loss (G2).
            crash_point!("publish.acknowledged");
            if let Some(lease) = &careful {
                // It came back, so it kills nobody: an outage may last for many restarts. A failure only
                // means that a death before the next event is charged to this one.
                let _ = lease.take_in_hand(None).await;
            }
            drop(hand);
            (batch, verdicts)
        };
        let mut returned = published
            .map(move |(batch, verdicts)| Returned { call, batch, verdicts, took: now.elapsed() })
            .boxed();
        // The sink must hear of this call before an earlier one can come back: which of two overlapping
        // calls is the earlier one is decided by who entered first, and a future enters when it is
        // polled. The waker does not matter: whoever waits for the calls polls it again.
        match returned.poll_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(returned) => self.answered = Some(returned),
            Poll::Pending => self.calls.push(returned),
        }
    }

    pub(super) fn on_returned(&mut self, returned: Returned) {
        let Returned { call, batch, mut verdicts, took } = returned;
        self.metrics.publish.record(took.as_secs_f64());
        self.begun.end(call);
        self.window.returned(&batch, self.begun.oldest());
        // A sink that answers too little is treated as one that did not answer for the rest.
        verdicts.resize(
            batch.len(),
            Verdict::Unknown(Failure::of_sink("sink.contract", "the sink gave no verdict")),
        );
        let now = self.context.store_now();
        let (mut delivered, mut outage) = (0u64, None);
        let answered =
            verdicts.iter().any(|verdict| matches!(scope(verdict), Some(Scope::Event | Scope::Destination)));
        for (pending, verdict) in batch.each().zip(verdicts) {
            if !self.destinations.is_empty() || self.begun.has_suspects() {
                self.hear_of_destination(&pending.message.destination, &verdict);
            }
            if verdict == Verdict::Delivered {
                delivered += 1;
                self.metrics.delivered(now, pending.message.stored.appended_at);
                self.window.delivered(&pending);
            } else if let Some(failure) = self.undelivered(pending, verdict) {
                outage = Some(failure);
            }
        }
        // A probe among them is over, or its destination would be waited for for ever.
        for destination in self.window.take_dropped() {
            self.ask_later(&destination, Instant::now());
        }
        self.metrics.published.increment(delivered);
        match outage {
            Some(failure) => {
                if self.breaker.is_closed() {
                    tracing::warn!(lane = %self.lease.id(), code = %failure.code, error = %failure.message, "publish failed");
                }
                self.context.progress.set_outage(Some(failure.code.into_owned()));
                self.open_breaker(Instant::now());
                self.give_back_due();
            }
            None if answered => self.close_breaker(),
            // Held, all of it: that says nothing about the sink. A probe that ended so is repeated.
            None if !self.breaker.is_closed() => self.open_breaker(Instant::now()),
            // Nobody is left whose return could change that: asked again at once, it would hold again at once.
            None if self.calls.is_empty() || took < HELD_PAUSE => {
                self.next_publish = Instant::now() + HELD_PAUSE
            }
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
                if reason == Reason::Outage {
                    self.close_destination(&pending.message.destination, &failure);
                }
                let destination = pending.message.destination.clone();
                let deferral = Deferral::new(route, destination, attempts, reason, Due::In(delay));
                let deferral = deferral.after(class, &failure);
                self.window.defer(pending, deferral);
            }
            Decision::Dead { attempts, class, failure } => {
                let death = Death::new(Some(route), attempts, class, failure);
                self.died(&pending.message.stored.event, &death);
                self.window.bury(pending, death);
            }
        }
        None
    }

    /// Gives back deferred events that wait in hand, where the store cannot let them wait there: its breaker has
    /// opened, and nobody knows for how long.
    fn give_back_due(&mut self) {
        if self.lease.keeps_in_outages() {
            return;
        }
        for pending in self.window.take_waiting_due().each() {
            // A probe among them is over.
            self.ask_later(&pending.message.destination, Instant::now());
            let deferral = pending.waits(Reason::Outage, Due::In(Duration::ZERO));
            self.window.defer_again(pending.message.stored.seq, deferral);
        }
    }

    /// The sink held this event behind an earlier one of its key.
    fn held(&mut self, pending: Pending) {
        if pending.tag.origin == Origin::Deferred {
            // It is still among the deferred, and comes due when the one before it leaves.
            self.window.let_go(&pending);
            self.next_look = self.next_look.max(Instant::now() + HELD_PAUSE);
            return;
        }
        let Some(key) = pending.message.order_key() else { return self.window.put_back(pending) };
        if self.window.is_blocked(key) {
            let deferral = pending.waits(Reason::Held, Due::Behind);
            return self.window.defer(pending, deferral);
        }
        // The one before it waits for the sink, died without holding its key, or is in a call that has
        // not come back: try again, but not while the sink would hold it again at once.
        if let Some(newest) = self.begun.newest() {
            self.window.be_shy(key, newest);
        }
        self.window.put_back(pending);
    }

    /// Puts events aside that were read before an earlier one of their key failed.
    fn hold_blocked(&mut self) {
        for pending in self.window.take_blocked() {
            let deferral = pending.waits(Reason::Held, Due::Behind);
            self.window.defer(pending, deferral);
        }
    }

    /// What a verdict says of a destination that was out of reach. One that judged the event itself is
    /// back; one that was not asked after all is asked again later.
    fn hear_of_destination(&mut self, destination: &str, verdict: &Verdict) {
        let initial = Duration::from_millis(self.settings.breaker_initial_ms);
        let max = Duration::from_millis(self.settings.breaker_max_ms);
        if *verdict != Verdict::Held {
            self.begun.clear(destination);
        }
        match scope(verdict) {
            Some(Scope::Event) => {
                if self.destinations.remove(destination).is_some() {
                    tracing::info!(lane = %self.lease.id(), destination = %shown(destination), "destination is back");
                }
            }
            // Whatever the verdict makes of the event, a probe that met the outage again is over.
            Some(Scope::Destination | Scope::Sink) | None => {
                if let Some(breaker) = self.destinations.get_mut(destination) {
                    breaker.fail(Instant::now(), initial, max);
                }
            }
        }
    }

    fn close_destination(&mut self, destination: &str, failure: &Failure) {
        let now = Instant::now();
        let initial = Duration::from_millis(self.settings.breaker_initial_ms);
        let max = Duration::from_millis(self.settings.breaker_max_ms);
        if let Some(breaker) = self.destinations.get_mut(destination) {
            breaker.fail(now, initial, max);
            return breaker.wait_at_least(now, failure.wait_at_least());
        }
        tracing::warn!(
            lane = %self.lease.id(), destination = %shown(destination), code = %failure.code, error = %failure.message,
            "destination out of reach: its events wait, no attempt is counted"
        );
        if self.destinations.len() >= DESTINATIONS_MAX
            && let Some(other) = self
                .destinations
                .iter()
                .find(|(_, breaker)| !breaker.is_probing())
                .map(|(name, _)| name.clone())
        {
            self.destinations.remove(&other);
        }
        let mut breaker = Breaker::opened(now, initial);
        breaker.wait_at_least(now, failure.wait_at_least());
        self.destinations.insert(destination.to_owned(), breaker);
        self.closed_anew = true;
    }

    /// Puts events aside that were read before their destination's breaker opened.
    fn put_aside_closed(&mut self) {
        if !std::mem::take(&mut self.closed_anew) {
            return;
        }
        let closed = &self.destinations;
        for pending in self.window.take_waiting(|message| closed.contains_key(&message.destination)) {
            let deferral = pending.waits(Reason::Outage, pending.in_turn());
            self.window.defer(pending, deferral);
        }
        // Behind those that hold their key.
        self.hold_blocked();
    }

    /// An event that a drained shutdown leaves behind in a page that must be settled.
    pub(super) fn defer_drained(&mut self, pending: Pending) {
        let deferral = pending.waits(Reason::Drained, pending.in_turn());
        self.window.defer(pending, deferral);
    }
}

/// Whom a verdict is about; a delivery, like a rejection, about the event. `None`: it was not sent.
fn scope(verdict: &Verdict) -> Option<Scope> {
    match verdict {
        Verdict::Delivered => Some(Scope::Event),
        Verdict::Retry(failure) | Verdict::Rejected(failure) | Verdict::Unknown(failure) => {
            Some(failure.scope)
        }
        Verdict::Held => None,
    }
}

fn unanswered(messages: usize, timeout: Duration) -> Vec<Verdict> {
    let failure = Failure::of_sink("relay.publish_timeout", format!("no answer within {timeout:?}"));
    vec![Verdict::Unknown(failure); messages]
}

/// Lets a test's event kill the process, as a bug in a client library would.
#[cfg(feature = "failpoints")]
fn poison(messages: &[Message]) {
    if messages.iter().any(|message| message.stored.event.headers.get("x-posthaste-test-abort").is_some()) {
        // CRASH(publish.poison): an event kills its relay again and again; it ends as a dead letter (F21).
        crash_point!("publish.poison");
        std::process::abort();
    }
}

#[cfg(not(feature = "failpoints"))]
fn poison(_: &[Message]) {}
