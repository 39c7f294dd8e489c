//! `all_failing = "pause"`: a deployment that fails with every message buries next to nothing.
//!
//! Once everything fails ([`Failing`]), what fails waits as for a dependency that is away, under the name
//! `handler`, and spends no attempt. One message at a time probes, and its failure counts: so a burst of
//! poison drains, one message for each probe. One success, whoever's it is, resumes all.
//!
//! Enough may have failed before it can be said that nothing succeeds. Until then nobody is given up.
//!
//! [`Failing`]: super::failing::Failing

use super::engine::Engine;
use super::failing::HANDLER;
use super::partition::PartitionState;
use super::settings::AllFailing;
use super::store::{DueOutcome, DueStep};
use super::transaction::QueuePlace;
use crate::source::Delivery;
use tokio::time::Instant;

impl Engine {
    fn pauses_all(&self) -> bool {
        self.settings.all_failing == AllFailing::Pause
    }

    /// Whether everything was found to fail.
    pub(super) fn is_all_failing(&self) -> bool {
        self.pauses_all() && self.dependencies.is_away(HANDLER)
    }

    /// A message failed alone. Answers whether that is not its own fault. A probe's failure is.
    pub(super) fn is_everybodys(&mut self, delivery: &Delivery, is_probe: bool, now: Instant) -> bool {
        if !self.pauses_all() {
            return false;
        }
        self.failing.failed(delivery);
        !is_probe && (self.is_all_failing() || self.find_all_failing(now))
    }

    /// Looks whether it can be said by now that everything fails.
    fn find_all_failing(&mut self, now: Instant) -> bool {
        let is_found = self.failing.said_at().is_some_and(|at| at <= now);
        if is_found {
            let error = self.last_error.clone().unwrap_or_default();
            tracing::warn!(
                consumer = %self.plan.name, error,
                "every message fails: nothing more is given up but one message for each probe, and one success \
                 resumes all"
            );
            let pauses = self.settings.pauses_of(HANDLER);
            let dependency = self.dependencies.open(&HANDLER.into(), error, now, pauses);
            if self.failing.is_known {
                dependency.wait_at_least(now, pauses.max);
            }
        }
        is_found
    }

    /// Until when nobody is given up: many have failed, and it is too early to say that everything does.
    pub(super) fn spared_until(&self, now: Instant) -> Option<Instant> {
        self.failing.said_at().filter(|at| self.pauses_all() && now < *at)
    }

    /// Messages succeeded.
    pub(super) fn not_all_failing(&mut self, now: Instant) {
        self.failing.succeeded(now);
        if self.is_all_failing() {
            self.dependencies.recover(HANDLER);
            self.resume_dependency(&HANDLER.into());
        }
    }

    /// Settings were reloaded: perhaps nobody is to wait any more.
    pub(super) fn reconsider_all_failing(&mut self) {
        if !self.pauses_all() && self.failing.is_some() {
            self.failing.forget();
            self.release_dependency(&HANDLER.into());
        }
    }

    /// What a probe leads to is done at once, though its partition waits: the next one may be the last.
    pub(super) fn set_probe_aside(&mut self, place: QueuePlace) {
        let is_open = self.is_open();
        let state = self.partitions.get_mut(&place.partition);
        let Some(state) = state.filter(|state| is_open && state.life == place.life) else { return };
        if let Some(next) = state.queues.head_mut(place.key).map(|head| head.next()) {
            self.start_aside(place, next);
        }
    }

    /// How many deferred messages may run together: while all fail one as a probe, and one while it may come
    /// to that, for each of them may be given up. `None`: not now.
    pub(super) fn looks_at(&self, now: Instant, is_probe: bool) -> Option<usize> {
        match () {
            () if !self.pauses_all() => Some(self.settings.batch_max),
            () if self.is_all_failing() => is_probe.then_some(1),
            () if self.spared_until(now).is_some() => None,
            () if self.failing.is_some() => Some(1),
            () => Some(self.settings.batch_max),
        }
    }

    /// Nobody in a paused partition can probe: a deferred message does.
    ///
    /// Others of the partitions may be on their way to it, and are waited for.
    pub(super) fn probe_deferred(&mut self, now: Instant) {
        let is_paused = |state: &&PartitionState| state.blocked_by.contains(HANDLER);
        let mut paused = self.partitions.values().filter(is_paused);
        if self.transactions == 0 && paused.all(|state| state.queues.wakes_at().is_none()) {
            self.is_look_probe = self.look(now, true);
            if self.is_look_probe {
                self.dependencies.probe(HANDLER);
            }
        }
    }

    /// What a look at the deferred messages says of all. `None`: the database did not answer.
    pub(super) fn judge_deferred(&mut self, outcome: Option<&DueOutcome>, now: Instant) {
        let is_probe = std::mem::take(&mut self.is_look_probe);
        if !self.pauses_all() {
            return;
        }
        for (delivery, step) in outcome.iter().flat_map(|outcome| &outcome.steps) {
            match step {
                DueStep::Done => self.not_all_failing(now),
                DueStep::Retried | DueStep::Dead => self.failing.failed(delivery),
                DueStep::Failed(_) => {}
            }
        }
        if !self.is_all_failing() {
            self.find_all_failing(now);
        } else if is_probe {
            if outcome.is_some_and(|outcome| outcome.steps.is_empty()) {
                // Nobody is left who could say whether it is over. Whoever comes next may, and what is known
                // stays until then: in a trickle it would be found out anew with each twenty messages.
                self.failing.is_known = true;
                self.release_dependency(&HANDLER.into());
            }
            self.dependencies.unprobed(HANDLER, now, self.settings.pauses_of(HANDLER));
        }
    }
}
