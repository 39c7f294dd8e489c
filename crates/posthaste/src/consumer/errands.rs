//! Questions of which one is under way at a time: the deferred messages, acknowledgements, pauses, ends,
//! housekeeping.

use super::begin::{BeginError, Begun};
use super::engine::Engine;
use super::failure::FailureKind;
use super::handle::EngineStep;
use super::partition::{PartitionState, Stage};
use super::queue::Entry;
use super::settings::OnDead;
use super::store::{
    ApplyError, Applying, DeferOrBury, Deferring, DueHeads, DueOutcome, DueStep, InboxError, InboxSwept,
    SavedPosition, Saving, Witness,
};
use super::transaction::{QueuePlace, Transaction};
use crate::source::{AckScope, Partition, PartitionView, SourceError, Standing};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Between two looks at the deferred messages, while none is known to be due: others may have deferred some.
const DUE_EVERY: Duration = Duration::from_secs(2);
/// How long an acknowledgement is waited for. The source goes on with it by itself.
const ACK_WAIT: Duration = Duration::from_secs(1);
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Between two looks at the end of the logs.
const VIEW_EVERY: Duration = Duration::from_secs(2);
/// Before a source that did not pause or resume a partition is asked again.
const PAUSE_AGAIN: Duration = Duration::from_millis(500);
/// How long the first deferred message waits whose dependency is away. It doubles as a breaker's pauses do.
pub(super) const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// What a task came back with.
pub(super) enum Answer {
    Begun(Result<(Witness, Vec<Begun>), BeginError>),
    Applied {
        transaction: Transaction,
        began: Instant,
        result: Result<Applying, ApplyError>,
    },
    SetAside {
        place: QueuePlace,
        entries: Vec<Entry>,
        how: DeferOrBury,
        result: Result<Deferring, InboxError>,
    },
    Due(Result<DueOutcome, InboxError>),
    Saved {
        positions: Vec<(u64, SavedPosition)>,
        skipped: usize,
        result: Result<Saving, InboxError>,
    },
    Acked(Result<Vec<Standing>, SourceError>),
    Swept(Result<InboxSwept, InboxError>),
    Viewed(Result<Vec<PartitionView>, SourceError>),
    Paused {
        partition: Partition,
        life: u64,
        paused: bool,
        result: Result<(), SourceError>,
    },
}

/// Questions of which one is under way at a time, and when the next is due.
#[derive(Debug)]
pub(super) struct Errand {
    pub(super) is_out: bool,
    pub(super) due: Instant,
}

impl Errand {
    pub(super) fn new(now: Instant) -> Self {
        Self { is_out: false, due: now }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.is_out && self.due <= now
    }

    pub(super) fn back(&mut self, next: Instant) {
        (self.is_out, self.due) = (false, next);
    }

    pub(super) fn wakes_at(&self) -> Option<Instant> {
        (!self.is_out).then_some(self.due)
    }
}

impl Engine {
    pub(super) fn start_look(&mut self, now: Instant) {
        if self.looks.is_due(now) {
            self.look(now, false);
        }
    }

    /// Looks at the deferred messages, if that may be now.
    pub(super) fn look(&mut self, now: Instant, is_probe: bool) -> bool {
        // A deferred message may kill too, and only partitions know of deaths: nothing runs before one of
        // them is taken (F21).
        let is_taken = |state: &PartitionState| matches!(state.stage, Stage::Reading | Stage::Stopped(_));
        if self.looks.is_out || !self.is_open() || !self.partitions.values().any(is_taken) {
            return false;
        }
        if self.is_suspect_out || self.is_careful() && self.transactions > 0 {
            return false;
        }
        let Some(messages_max) = self.looks_at(now, is_probe) else { return false };
        (self.looks.is_out, self.is_looks_turn) = (true, false);
        let heads = DueHeads {
            messages_max,
            handler_time_max: Duration::from_millis(50),
            handler_timeout: self.settings.handler_timeout(),
            retry: self.settings.retry.clone(),
            dead_hold: self.settings.on_dead == OnDead::Hold,
            unavailable_pause: self.away_pause,
            careful: self.is_careful() || self.partitions.values().any(|state| state.looks_carefully),
            chance: self.clock.chance(),
        };
        self.looked_at = now;
        let store = Arc::clone(&self.plan.store);
        self.ask("deferred", async move { Answer::Due(store.apply_deferred(&heads).await) });
        true
    }

    pub(super) fn start_ack(&mut self, now: Instant) {
        // A queue keeps what it is not told of, and hands out no more above a bound: one message that waits
        // must not hold up those behind it.
        let capabilities = self.plan.source.capabilities();
        let is_each = capabilities.ack_scope == AckScope::Each;
        let settled: usize = self.partitions.values().filter(|_| is_each).map(PartitionState::untold).sum();
        let to_ack = self.to_ack.len() + settled;
        // What may be ahead is half used up: waiting for the usual time would bound the speed.
        let is_ahead = capabilities.ahead_max.is_some_and(|most| to_ack >= (most / 2).max(1));
        let is_due = self.acks.is_due(now) || (!self.acks.is_out && (is_ahead || self.is_filled(to_ack)));
        if !is_due || to_ack == 0 {
            return;
        }
        if is_each {
            let settled = self.partitions.values_mut().flat_map(PartitionState::settled_tickets);
            self.to_ack.extend(settled);
        }
        self.acks.is_out = true;
        let (source, tickets) = (Arc::clone(&self.plan.source), std::mem::take(&mut self.to_ack));
        self.ask("ack", async move {
            // What is acknowledged has left the source's hands. A broker that writes no positions holds up
            // nobody.
            let acked = tokio::time::timeout(ACK_WAIT, source.ack(&tickets)).await;
            let late =
                || Err(SourceError::Transient("the broker has not written the positions yet".to_owned()));
            Answer::Acked(acked.unwrap_or_else(|_| late()))
        });
    }

    /// Pauses partitions at the source whose dependency is away or that crowd the window, and resumes the
    /// others.
    pub(super) fn start_pauses(&mut self) {
        let mut changed = Vec::new();
        for (partition, state) in &mut self.partitions {
            let wanted =
                !state.blocked_by.is_empty() || state.is_crowding || matches!(state.stage, Stage::Stopped(_));
            if wanted != state.is_paused && !state.is_pausing && state.stage != Stage::Starting {
                state.is_pausing = true;
                changed.push((partition.clone(), state.life, wanted));
            }
        }
        for (partition, life, paused) in changed {
            let source = Arc::clone(&self.plan.source);
            self.ask("pause", async move {
                let result =
                    if paused { source.pause(&partition).await } else { source.resume(&partition).await };
                if result.is_err() {
                    // It is asked again, and not at once: the partition may be somebody else's by now.
                    tokio::time::sleep(PAUSE_AGAIN).await;
                }
                Answer::Paused { partition, life, paused, result }
            });
        }
    }

    pub(super) fn start_view(&mut self, now: Instant) {
        if self.views.is_due(now) && !self.partitions.is_empty() && !self.is_draining() {
            self.views.is_out = true;
            let source = Arc::clone(&self.plan.source);
            self.ask("view", async move { Answer::Viewed(source.view().await) });
        }
    }

    pub(super) fn start_sweep(&mut self, now: Instant) {
        if self.sweeps.is_due(now)
            && self.witness.is_some()
            && self.database.is_closed()
            && !self.is_draining()
        {
            self.sweeps.is_out = true;
            let (store, retention) = (Arc::clone(&self.plan.store), self.settings.retention);
            let most = self.settings.deferred_max;
            self.ask("sweep", async move { Answer::Swept(store.sweep(retention, most).await) });
        }
    }

    pub(super) fn on_viewed(&mut self, result: Result<Vec<PartitionView>, SourceError>, now: Instant) {
        self.views.back(now + VIEW_EVERY);
        for view in result.unwrap_or_default() {
            if let Some(state) = self.partitions.get_mut(&view.partition) {
                state.end = view.end.or(state.end);
                // A source with nothing in hand and everything committed has read to the end. What is left
                // are the broker's own markers.
                let is_read = view.in_hand == 0 && view.committed.is_some() && view.committed == view.end;
                if is_read && state.is_reading() && state.hand.open() == 0 {
                    state.end = Some(state.position());
                    state.care_end = state.care_end.and(state.end);
                }
            }
        }
    }

    pub(super) fn on_swept(&mut self, result: Result<InboxSwept, InboxError>, now: Instant) -> EngineStep {
        self.sweeps.back(now + SWEEP_EVERY);
        match result {
            Ok(swept) => {
                self.check_witness(swept.witness);
                self.deferred = swept.deferred;
                self.metrics.swept(&swept);
                Ok(())
            }
            // Saving says whether the database works. Housekeeping that takes too long stops nobody.
            Err(InboxError::Unavailable(why)) => {
                tracing::warn!(consumer = %self.plan.name, why, "housekeeping failed, and is tried again");
                Ok(())
            }
            Err(error) => self.tolerate(&error, "housekeeping", now),
        }
    }

    pub(super) fn on_due(&mut self, result: Result<DueOutcome, InboxError>, now: Instant) -> EngineStep {
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) => {
                self.judge_deferred(None, now);
                self.looks.back(now + DUE_EVERY);
                return self.tolerate(&error, "a look at the deferred messages", now);
            }
        };
        self.check_witness(outcome.witness);
        self.metrics.looked(&outcome, self.clock.now());
        let (moved, done) = (outcome.moved(), outcome.done());
        self.deferred = self.deferred.saturating_sub(moved as u64);
        if moved > 0 || !outcome.failed.is_empty() {
            self.well_at = now;
        } else {
            for state in self.partitions.values_mut() {
                (state.has_looked, state.looks_carefully) = (true, false);
                state.end_care();
            }
        }
        let away = outcome.failed.iter().find_map(|failure| match &failure.kind {
            FailureKind::Unavailable(name) => Some(self.settings.pauses_of(name)),
            _ => None,
        });
        match away {
            Some(pauses) => self.away_pause = (self.away_pause * 2).clamp(pauses.initial, pauses.max),
            None if done > 0 => self.away_pause = AWAY_PAUSE,
            None => {}
        }
        if let Some(failure) = outcome.failed.last() {
            self.last_error = Some(format!("{}: {}", failure.code, failure.message));
        }
        self.judge_deferred(Some(&outcome), now);
        let done = outcome.steps.iter().filter(|(_, step)| *step == DueStep::Done);
        for dependency in self.dependencies.succeeded(done.map(|(delivery, _)| &**delivery), self.looked_at) {
            self.resume_dependency(&dependency);
        }
        let next = outcome.next_due.map_or(DUE_EVERY, |due| due.min(DUE_EVERY));
        self.looks.back(if moved > 0 { now } else { now + next.max(Duration::from_millis(10)) });
        Ok(())
    }
}
