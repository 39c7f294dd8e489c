//! What comes from the source: changes of the assignment, and messages.

use super::begin::{BeginError, Begun, Start};
use super::engine::{Engine, queue_of};
use super::failure::{Disposition, Failure, FailureKind};
use super::handle::EngineStep;
use super::identity::{Found, hash_of, order_id};
use super::partition::{Leaving, PartitionState, Stage};
use super::queue::{Entry, Next};
use super::settings::Unmatched;
use super::store::{SavedPosition, Witness, Work};
use crate::admin::history::History;
use crate::crash_point;
use crate::mutation::{Mutation, active};
use crate::source::{Batch, Change, Delivery, Partition, SourceError};
use crate::store::{Care, reach};
use crate::telemetry::HandledAs;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Messages without an identity after which a consumer stops, if none before them had one.
const UNIDENTIFIED_MAX: usize = 20;
/// A source says that its broker is away at least this often, while it is.
const AWAY_SAID_FOR: Duration = Duration::from_secs(10);
/// Between two calls of a source that is out of reach.
const SOURCE_PAUSE: Duration = Duration::from_millis(500);

impl Engine {
    pub(super) fn on_read(&mut self, result: Result<Batch, SourceError>) -> EngineStep {
        let now = Instant::now();
        let batch = match result {
            Ok(batch) => batch,
            Err(error) if error.is_transient() => {
                self.source_is_away(error.to_string());
                self.not_read_before = now + SOURCE_PAUSE;
                return Ok(());
            }
            Err(error) => return Err(format!("{}: {error}", self.plan.name).into()),
        };
        // One that has nothing to say has not shown that its broker is back.
        let is_back = |(_, at): &mut (String, Instant)| !batch.is_empty() || now > *at + AWAY_SAID_FOR;
        if self.source_away.take_if(is_back).is_some() {
            tracing::info!(consumer = %self.plan.name, "the broker is back");
        }
        for change in batch.changes {
            self.on_change(change, now);
        }
        for delivery in batch.deliveries {
            // CRASH(consume.taken): nothing durable happened. They are delivered again (G2).
            crash_point!("consume.taken");
            self.on_delivery(delivery, now)?;
        }
        Ok(())
    }

    fn on_change(&mut self, change: Change, now: Instant) {
        match change {
            Change::Assigned { partition, epoch } => match self.partitions.get_mut(&partition) {
                // Our own seek's, or one that came while a start is under way: the start's answer will say.
                Some(state) if state.stage == Stage::Starting || state.epoch == epoch => {
                    state.announced = state.announced.max(epoch);
                    // What was said of the log before is of an earlier epoch.
                    state.early_changes.clear();
                    state.beyond = None;
                }
                _ => {
                    self.metrics.all.rebalances.increment(1);
                    self.assign(partition, epoch);
                }
            },
            Change::Revoked { partition, epoch } => {
                let Some(state) = self.partitions.get_mut(&partition) else { return };
                state.revoked = state.revoked.max(epoch);
                // The epoch that a seek of ours ended is no loss. While a start is under way nobody knows
                // which one that is: the start's answer will say.
                if state.stage != Stage::Starting && state.epoch == epoch {
                    self.revoke(&partition, now);
                }
            }
            Change::Lost { .. } | Change::Beyond { .. } => self.on_gap(change),
            Change::Empty { ref partition, epoch, until } => {
                let Some(state) = self.partitions.get_mut(partition) else { return };
                match state.stage {
                    Stage::Starting => state.early_changes.push(change),
                    Stage::Reading if state.epoch == epoch => state.hand.skip_to(until),
                    _ => {}
                }
            }
        }
    }

    /// A partition is this member's, or has to be begun anew.
    pub(super) fn assign(&mut self, partition: Partition, epoch: i64) {
        self.lives += 1;
        // Counters count from 0, or their first step is not seen.
        self.metrics.topic(&partition.topic);
        // It came back before it was given back: what is left of that time is a repetition.
        self.leaving.retain(|leaving| leaving.partition != partition);
        self.unidentified.retain(|(delivery, ..)| *delivery.partition() != partition);
        self.partitions.insert(partition, PartitionState::new(self.lives, epoch));
    }

    fn revoke(&mut self, partition: &Partition, now: Instant) {
        let Some(state) = self.partitions.remove(partition) else { return };
        self.unidentified.retain(|(delivery, ..)| delivery.partition() != partition);
        self.metrics.all.rebalances.increment(1);
        tracing::info!(consumer = %self.plan.name, %partition, "the partition goes elsewhere");
        if state.is_reading() {
            let until = now + Duration::from_millis(self.settings.handover_wait_ms);
            self.leaving.push(Leaving { partition: partition.clone(), state, until });
        } else {
            self.release(partition, state.seeks);
        }
    }

    /// Gives a partition back of which nothing is known but that it was taken, or its next owner would count
    /// a death.
    fn release(&mut self, partition: &Partition, seeks: i64) {
        let mut state = PartitionState::new(0, 0);
        state.seeks = seeks;
        self.releases.push(SavedPosition { release: true, ..state.to_save(partition, None) });
    }

    /// Records are missing before a position, or the position is beyond the end.
    ///
    /// A queue says how many are lost, whoever has it by now: nothing is passed over.
    fn on_gap(&mut self, change: Change) {
        let seeks = self.plan.source.capabilities().seeks;
        let (Change::Lost { partition, .. } | Change::Beyond { partition, .. }) = &change else { return };
        if let (Change::Lost { from, until, .. }, false) = (&change, seeks) {
            return self.count_lost(partition, *from, *until);
        }
        let Some(state) = self.partitions.get_mut(partition) else { return };
        match (&state.stage, &change) {
            (Stage::Starting | Stage::Assigned, _) => state.early_changes.push(change),
            (Stage::Reading, Change::Lost { from, until, .. }) => {
                let from = (*from).max(state.position());
                state.hand.skip_to(*until);
                self.count_lost(partition, from, *until);
            }
            (Stage::Reading, Change::Beyond { position, end, .. }) if *position + 1 >= state.position() => {
                state.beyond = Some((*position, *end));
                self.stop_beyond();
            }
            // The log ended under what was read, or this is an old story. The database's position tells.
            (Stage::Reading, Change::Beyond { .. }) => self.retake(&partition.clone()),
            _ => {}
        }
    }

    /// Stops partitions that are at a position beyond the end of their log.
    pub(super) fn stop_beyond(&mut self) {
        let is_beyond = |(_, state): &(&Partition, &PartitionState)| state.is_at_the_beyond();
        let found: Vec<_> =
            self.partitions.iter().filter(is_beyond).map(|(p, state)| (p.clone(), state.beyond)).collect();
        for (partition, beyond) in found {
            let end = beyond.and_then(|(_, end)| end);
            let end = end.map_or_else(String::new, |end| format!(", which is {end}"));
            let position = self.partitions.get(&partition).map_or(0, PartitionState::position);
            let why = format!(
                "{partition}: the saved position {position} is beyond the end of the log{end}. It belongs to another log, or this one \
                 lost its end. Nothing is read or skipped until you say where to go on: posthaste consumers seek"
            );
            self.stop_partition(&partition, why);
        }
    }

    /// Nothing of the partition goes on without an operator.
    pub(super) fn stop_partition(&mut self, partition: &Partition, why: String) {
        tracing::error!(consumer = %self.plan.name, "{why}");
        let Some(old) = self.partitions.get(partition) else { return };
        self.unidentified.retain(|(delivery, ..)| delivery.partition() != partition);
        self.lives += 1;
        let mut state = PartitionState::new(self.lives, old.epoch);
        (state.announced, state.seeks, state.stage) = (old.announced, old.seeks, Stage::Stopped(why));
        state.is_paused = old.is_paused;
        self.partitions.insert(partition.clone(), state);
    }

    /// The partition is taken anew from the database's position.
    pub(super) fn retake(&mut self, partition: &Partition) {
        if let Some(old) = self.partitions.get(partition) {
            let (epoch, is_paused, seeks) = (old.epoch, old.is_paused, old.seeks);
            self.assign(partition.clone(), epoch);
            // The source does not forget a pause.
            if let Some(state) = self.partitions.get_mut(partition) {
                (state.is_paused, state.seeks) = (is_paused, seeks);
            }
        }
    }

    /// The database may have gone back in time: nothing that is remembered counts any more. `false`: it is
    /// so.
    pub(super) fn check_witness(&mut self, witness: Witness) -> bool {
        match self.witness {
            Some(known) if known != witness && !active(Mutation::IgnoreWitness) => {
                tracing::warn!(
                    consumer = %self.plan.name,
                    "the database was restarted, failed over or restored: everything is taken anew from its position"
                );
                self.witness = Some(witness);
                // What was learnt of them does not count; that they are given back does.
                self.releases.iter_mut().for_each(|row| (row.position, row.release) = (None, true));
                for leaving in std::mem::take(&mut self.leaving) {
                    self.release(&leaving.partition, leaving.state.seeks);
                }
                let partitions: Vec<Partition> = self.partitions.keys().cloned().collect();
                for partition in &partitions {
                    self.retake(partition);
                }
                self.metrics.all.retaken.increment(1);
                false
            }
            _ => {
                self.witness = Some(witness);
                true
            }
        }
    }

    pub(super) fn on_begun(
        &mut self,
        result: Result<(Witness, Vec<Begun>), BeginError>,
        now: Instant,
    ) -> EngineStep {
        let (witness, begun) = match result {
            Ok(begun) => begun,
            Err(error) => {
                self.begins.back(now + SOURCE_PAUSE);
                self.begin_again();
                return match error {
                    BeginError::Store(error) => self.tolerate(&error, "taking partitions", now),
                    BeginError::Source(error) if error.is_transient() => {
                        self.last_error = Some(error.to_string());
                        Ok(())
                    }
                    BeginError::Source(error) => Err(format!("{}: {error}", self.plan.name).into()),
                };
            }
        };
        self.begins.back(now);
        // Another life of the database: what it said is true of that life, but others were taken from the old
        // one.
        self.check_witness(witness);
        for begun in begun {
            self.on_started(begun, now)?;
        }
        Ok(())
    }

    /// What was being begun is to be begun again, unless it went elsewhere: then it is its owner's.
    fn begin_again(&mut self) {
        let is_gone = |state: &PartitionState| state.stage == Stage::Starting && state.is_taken_away();
        for (partition, state) in
            self.partitions.extract_if(.., |_, state| is_gone(state)).collect::<Vec<_>>()
        {
            self.release(&partition, state.seeks);
        }
        let starting = self.partitions.values_mut().filter(|state| state.stage == Stage::Starting);
        starting.for_each(|state| state.stage = Stage::Assigned);
    }

    fn on_started(&mut self, begun: Begun, now: Instant) -> EngineStep {
        let Begun { partition, life, taken, log_id, end, foreign, is_known, start } = begun;
        // What kills may lie as far behind the saved position as an owner can be ahead of it.
        let dangerous = self.settings.in_hand_max.max(usize::try_from(reach(1)).unwrap_or(usize::MAX));
        let Some(state) = self.partitions.get_mut(&partition).filter(|state| state.life == life) else {
            return Ok(());
        };
        (state.seeks, state.log_id, state.end) = (taken.seeks, log_id, end);
        let is_regained = state.announced > state.epoch && !state.is_taken_away();
        let (position, epoch) = match start {
            Start::At { position, epoch } => (position, epoch),
            // It went elsewhere meanwhile: its next owner finds out by itself.
            Start::Stopped(_) | Start::Later(_) if state.is_taken_away() => {
                self.partitions.remove(&partition);
                self.release(&partition, taken.seeks);
                return Ok(());
            }
            Start::Stopped(why) => {
                self.stop_partition(&partition, why);
                return Ok(());
            }
            Start::Later(why) => {
                (state.stage, self.last_error) = (Stage::Assigned, Some(why));
                self.begins.back(now + SOURCE_PAUSE);
                return Ok(());
            }
            Start::Gone => {
                let announced = state.announced;
                self.partitions.remove(&partition);
                self.release(&partition, taken.seeks);
                // The start looked while it was elsewhere, and it is back: nobody will say that again.
                if is_regained {
                    self.assign(partition, announced);
                }
                return Ok(());
            }
        };
        if state.announced > epoch {
            // It was taken away and came back after the seek: that assignment reads from elsewhere.
            let announced = state.announced;
            self.assign(partition, announced);
            return Ok(());
        }
        if state.revoked >= epoch {
            self.partitions.remove(&partition);
            self.release(&partition, taken.seeks);
            return Ok(());
        }
        (state.epoch, state.saved, state.position_time) = (epoch, taken.position, taken.position_time);
        state.was_known = is_known;
        state.evidence = taken.position_time.map(|time| (position - 1, time));
        state.read_from(position);
        let seeks = self.plan.source.capabilities().seeks;
        state.looks_carefully = taken.care != Care::None && !seeks;
        if taken.care != Care::None && seeks {
            tracing::warn!(consumer = %self.plan.name, %partition, care = taken.care.words(), "former owners died here: going carefully");
            (state.care, state.care_left, state.care_end) = (taken.care, dangerous, end);
        }
        let (early, changes) = (std::mem::take(&mut state.early), std::mem::take(&mut state.early_changes));
        state.bytes = 0;
        if let Some(theirs) = foreign {
            tracing::warn!(
                consumer = %self.plan.name, %partition, ours = position, theirs,
                "the broker's position is not ours and has no effect: use posthaste consumers seek"
            );
            self.metrics.partition(&partition).foreign_positions.increment(1);
        }
        // What is empty is so behind what was delivered.
        let (empty, gaps): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| matches!(change, Change::Empty { .. }));
        gaps.into_iter().for_each(|change| self.on_gap(change));
        for delivery in early {
            self.on_delivery(delivery, now)?;
        }
        empty.into_iter().for_each(|change| self.on_change(change, now));
        Ok(())
    }

    fn on_delivery(&mut self, delivery: Delivery, now: Instant) -> EngineStep {
        let partition = delivery.partition().clone();
        let Some(state) = self.partitions.get_mut(&partition) else { return Ok(()) };
        if state.stage == Stage::Starting {
            // Those of the epoch that the start's seek ends come again.
            if delivery.ticket.epoch > state.epoch {
                state.bytes += delivery.message.bytes();
                state.early.push(delivery);
            }
            return Ok(());
        }
        if !state.is_reading() || state.epoch != delivery.ticket.epoch {
            return Ok(());
        }
        // What a queue delivers has no place there. Under one epoch its tickets are counted.
        let position = delivery.position.unwrap_or(delivery.ticket.number);
        if state.beyond.is_some_and(|(beyond, _)| position >= beyond) {
            return Ok(());
        }
        if position < state.hand.next() {
            match delivery.position {
                Some(_) => return self.on_evidence(&partition, position, delivery),
                // Nothing says that it was decided: the queue is asked for everything again.
                None => self.retake(&partition),
            }
            return Ok(());
        }
        state.evidence = None;
        state.deliver(position, &delivery);
        let bytes = delivery.message.bytes();
        if !self.plan.store.takes(&delivery) {
            match self.plan.unmatched {
                Unmatched::Skip => {
                    state.settle(position);
                    self.well_at = now;
                    self.metrics.topic(&partition.topic).handled(HandledAs::Skipped, 1);
                    self.note_skipped(delivery);
                    return Ok(());
                }
                Unmatched::Dead => {
                    let failure =
                        poison(Disposition::Unmatched, "consumer.unmatched", "no handler takes this message");
                    return self.admit(delivery, position, bytes, Some(failure));
                }
            }
        }
        self.admit(delivery, position, bytes, None)
    }

    /// The record just before the position: with another time it belongs to another log.
    fn on_evidence(&mut self, partition: &Partition, position: i64, delivery: Delivery) -> EngineStep {
        let Some(state) = self.partitions.get_mut(partition) else { return Ok(()) };
        if let Some((at, time)) = state.evidence
            && at == position
            && delivery.published_at.is_some_and(|published| published != time)
        {
            let why = format!(
                "{partition}: the record before the saved position {} is not the one that was handled: this is another log. Nothing \
                 is read or skipped until you say where to go on: posthaste consumers seek",
                position + 1
            );
            self.stop_partition(partition, why);
            return Ok(());
        }
        // It was decided long ago; the source only has to hear it.
        self.to_ack.push(delivery.ticket);
        Ok(())
    }

    /// Takes a message into its key queue.
    fn admit(
        &mut self,
        delivery: Delivery,
        position: i64,
        bytes: usize,
        failure: Option<Failure>,
    ) -> EngineStep {
        let (id, unfit) = match self.plan.identity.of(&delivery) {
            Found::Known(id) => {
                if !std::mem::replace(&mut self.is_identified, true) {
                    for (delivery, position, bytes, failure) in std::mem::take(&mut self.unidentified) {
                        self.admit(delivery, position, bytes, failure)?;
                    }
                }
                (id, None)
            }
            Found::Unfit(id) => {
                let why = "its identity is too long, or holds a zero byte: no mark can hold it";
                (id, Some(poison(Disposition::Unfit, "consumer.unfit", why)))
            }
            Found::Nothing => {
                if !self.is_identified {
                    // It is kept until one has an identity, so that nothing is buried by a wrong setting.
                    self.unidentified.push((delivery, position, bytes, failure));
                    if self.unidentified.len() < UNIDENTIFIED_MAX {
                        self.last_error = Some("no message had an identity yet".to_owned());
                        return Ok(());
                    }
                    return Err(format!(
                        "{}: the first {UNIDENTIFIED_MAX} messages have no identity; nothing was handled or buried. Say where it is: \
                         identity = [\"id\", \"header:NAME\", \"json:/pointer\", \"position\"]",
                        self.plan.name
                    )
                    .into());
                }
                let place = delivery.place().unwrap_or_else(|| hash_of(&delivery));
                (
                    place.into(),
                    Some(poison(Disposition::Unfit, "consumer.unidentified", "it has no identity")),
                )
            }
        };
        self.arrivals += 1;
        let (arrival, partition) = (self.arrivals, delivery.partition().clone());
        let order_id = order_id(self.plan.order, &delivery);
        let work =
            Work { delivery: Arc::new(delivery), id, order_id, attempts: 0, history: History::default() };
        let key = queue_of(&work, arrival);
        let crashed = self.crashed(&partition, position);
        let mut entry = Entry { work, position, arrival, bytes, trouble: None };
        if let Some(failure) = failure.or(unfit).or(crashed)
            && let FailureKind::Poison(disposition) = failure.kind
        {
            self.note(&partition.topic, &failure);
            entry.work.attempts = u32::from(disposition != Disposition::Unmatched);
            entry.work.history.push(self.clock.now(), failure.class(), &failure.code, &failure.message);
            (entry.trouble().next, entry.trouble().alone) = (Next::Bury { disposition, failure }, true);
        }
        if let Some(state) = self.partitions.get_mut(&partition) {
            state.bytes += bytes;
            state.queues.push(key, entry);
        }
        Ok(())
    }

    /// The process died with this message in hand too often (F21).
    fn crashed(&self, partition: &Partition, position: i64) -> Option<Failure> {
        let state = self.partitions.get(partition)?;
        let Care::OneByOne { suspect: Some((suspect, deaths)) } = state.care else { return None };
        let why = format!("the process died {deaths} times with this message in hand");
        (suspect == position && deaths >= self.settings.crash_limit)
            .then(|| poison(Disposition::Crashed, "consumer.crashed", &why))
    }
}

fn poison(disposition: Disposition, code: &'static str, why: &str) -> Failure {
    Failure::new(FailureKind::Poison(disposition), code, why)
}
