//! What came of a transaction, and what follows for its messages.

use super::engine::Engine;
use super::failing::{HANDLER, own_name};
use super::failure::{Failure, FailureKind, OUTAGE_ELSEWHERE};
use super::handle::EngineStep;
use super::meter::class;
use super::partition::PartitionState;
use super::policy::{Consequence, LOSSES_EACH};
use super::queue::{Entry, Next, Queues};
use super::store::{ApplyError, Applying, DeferOrBury, Deferring, InboxError, MessageOutcome, SetAside};
use super::transaction::{QueuePlace, Transaction};
use super::watchdog::STALLED_AFTER;
use crate::mutation::{Mutation, active};
use crate::telemetry::HandledAs;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A held message asks again after this long.
const HELD_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// The partition of a place, if it is still the same taking of it; also one that is being given back.
    fn state_of(&mut self, place: &QueuePlace) -> Option<&mut PartitionState> {
        let life = place.life;
        if self.partitions.get(&place.partition).is_some_and(|state| state.life == life) {
            return self.partitions.get_mut(&place.partition);
        }
        self.leaving.iter_mut().map(|leaving| &mut leaving.state).find(|state| state.life == life)
    }

    pub(super) fn on_applied(
        &mut self,
        transaction: Transaction,
        began: Instant,
        result: Result<Applying, ApplyError>,
        now: Instant,
    ) -> EngineStep {
        self.transactions -= 1;
        self.in_conflict -= usize::from(transaction.is_in_conflict);
        self.is_suspect_out = false;
        let places: Vec<(QueuePlace, usize)> =
            transaction.places().map(|(place, n)| (place.clone(), n)).collect();
        for (place, count) in &places {
            if let Some(state) = self.state_of(place) {
                state.running = state.running.saturating_sub(*count);
                // It came back, so it kills nobody: it may wait for long.
                state.in_hand = None;
            }
        }
        self.metrics.transaction(transaction.len(), began.elapsed());
        let probe = transaction.probe.clone();
        let result = match result {
            Ok(applying) => {
                if self.check_witness(applying.witness) {
                    self.on_committed(transaction, &applying, began, now);
                }
                Ok(())
            }
            Err(error) => {
                if error.witness.is_none_or(|witness| self.check_witness(witness)) {
                    self.on_rolled_back(transaction, error, now)
                } else {
                    Ok(())
                }
            }
        };
        if let Some(name) = probe {
            self.dependencies.unprobed(&name, now, self.settings.pauses_of(&name));
        }
        result
    }

    fn on_committed(&mut self, transaction: Transaction, applying: &Applying, began: Instant, now: Instant) {
        let ran = applying.outcomes.iter().filter(|outcome| **outcome == MessageOutcome::Done).count();
        self.batch_size.succeeded(ran, applying.handler_time, now.saturating_duration_since(began));
        if let Some(work) = transaction.works.first().filter(|_| ran > 0) {
            let each = applying.handler_time.as_secs_f64() / ran as f64;
            self.metrics.topic(&work.delivery.partition().topic).handle.record(each);
        }
        if ran > 0 {
            self.not_all_failing(now);
        }
        let done = transaction.works.iter().zip(&applying.outcomes);
        let done = done.filter(|(_, outcome)| **outcome == MessageOutcome::Done);
        let done = done.map(|(work, _)| &*work.delivery);
        for dependency in self.dependencies.succeeded(done, began) {
            self.resume_dependency(&dependency);
        }
        let mut outcomes = applying.outcomes.iter();
        for (place, entries) in transaction.into_groups() {
            let (mut left, mut is_held) = (Vec::new(), false);
            for mut entry in entries {
                let outcome = *outcomes.next().unwrap_or(&MessageOutcome::Held);
                let is_head = left.is_empty();
                match outcome {
                    MessageOutcome::Held => {
                        is_held |= is_head;
                        entry.trouble().held_since.get_or_insert(now);
                        left.push(entry);
                    }
                    MessageOutcome::Again => {
                        entry.trouble().alone |= is_head;
                        left.push(entry);
                    }
                    _ => {
                        self.metrics.handled(outcome, &entry.work.delivery, self.clock.now());
                        self.settle(&place, &entry, now);
                    }
                }
            }
            let wait = Duration::from_millis(self.settings.memory_wait_max_ms);
            let is_copied = self.plan.order != super::identity::Order::Partition;
            let Some(state) = self.state_of(&place) else { continue };
            let is_overdue = left
                .first()
                .filter(|_| is_held)
                .and_then(|head| head.trouble.as_ref()?.held_since)
                .is_some_and(|since| is_copied && now.saturating_duration_since(since) + HELD_PAUSE >= wait);
            if let Some(head) = left.first_mut()
                && is_overdue
            {
                head.trouble().next = Next::Behind;
            }
            state.queues.put_back(place.key, left);
            match is_held && !is_overdue {
                true => state.queues.set_waiting(place.key, now + HELD_PAUSE),
                false => state.queues.set_ready(place.key),
            }
        }
    }

    /// A message is settled: the position may go on.
    fn settle(&mut self, place: &QueuePlace, entry: &Entry, now: Instant) {
        self.well_at = now;
        if let Some(state) = self.state_of(place) {
            state.bytes = state.bytes.saturating_sub(entry.bytes);
            state.settle(entry.position);
        }
    }

    fn on_rolled_back(&mut self, transaction: Transaction, error: ApplyError, now: Instant) -> EngineStep {
        let ApplyError { at, failure, .. } = error;
        let named = transaction.works.get(at.unwrap_or(0));
        if let Some(topic) = named.map(|work| Arc::clone(&work.delivery.partition().topic)) {
            self.note(&topic, &failure);
        }
        let messages = transaction.len();
        let is_alone = messages == 1;
        if let FailureKind::Committed | FailureKind::Broken = failure.kind {
            return self.refused(failure.message);
        }
        // An outage that a handler heard of over a connection that lives is another server's. If it is ours,
        // the next statement of ours says so.
        let is_outage = match failure.kind {
            FailureKind::Outage => true,
            FailureKind::ConnectionLost => failure.code != OUTAGE_ELSEWHERE,
            _ => false,
        };
        if is_outage {
            self.database_failed(&failure.message, now);
        }
        // Who is named runs alone. Where nobody is, the one is found by halves.
        let is_elsewhere = match failure.kind {
            FailureKind::Outage => true,
            FailureKind::Unavailable(_) | FailureKind::ConnectionLost => at.is_some(),
            _ => false,
        };
        if !is_alone && !is_elsewhere {
            self.batch_size.failed(messages);
        }
        // A probe that failed by itself has met its dependency, or does not need it: others are let through.
        if let (Some(name), FailureKind::Error | FailureKind::Poison(_)) = (&transaction.probe, &failure.kind)
            && **name != *HANDLER
        {
            let name = Arc::clone(name);
            self.dependencies.recover(&name);
            self.resume_dependency(&name);
        }
        let mut index = 0;
        let is_probe = transaction.probe.as_deref() == Some(HANDLER);
        for (place, mut entries) in transaction.into_groups() {
            let mut after = After::Ready;
            for (number, entry) in entries.iter_mut().enumerate() {
                let is_named = at.map_or(is_alone, |at| at == index);
                index += 1;
                let is_in_conflict = at.is_none() && failure.kind == FailureKind::Conflict;
                match number {
                    0 if is_named || is_in_conflict => {
                        after = self.after_failure(&place, entry, &failure, is_alone, is_probe, now);
                    }
                    // Only the head decides about its queue: one behind it comes to its turn alone.
                    _ if is_named => entry.trouble().alone = true,
                    _ => {}
                }
            }
            let Some(state) = self.state_of(&place) else { continue };
            state.queues.put_back(place.key, entries);
            match after {
                After::Wait(until) => state.queues.set_waiting(place.key, until),
                After::Block(dependency) => {
                    state.queues.set_blocked(place.key, &dependency);
                    state.blocked_by.insert(dependency);
                }
                After::Ready => {
                    state.queues.set_ready(place.key);
                    if is_probe {
                        self.set_probe_aside(place);
                    }
                }
            }
        }
        Ok(())
    }

    /// What follows for the message that failed.
    fn after_failure(
        &mut self,
        place: &QueuePlace,
        entry: &mut Entry,
        failure: &Failure,
        is_alone: bool,
        is_probe: bool,
        now: Instant,
    ) -> After {
        match &failure.kind {
            FailureKind::Conflict => {
                entry.trouble().alone = true;
                After::Wait(self.conflict(place, entry, &failure.message, now))
            }
            FailureKind::Outage if active(Mutation::CountOutages) => self.count(place, entry, failure, now),
            FailureKind::Outage => After::Ready,
            FailureKind::ConnectionLost => {
                let trouble = entry.trouble();
                trouble.alone = true;
                let is_elsewhere = failure.code == OUTAGE_ELSEWHERE;
                let losses = if is_elsewhere { &mut trouble.outages_elsewhere } else { &mut trouble.losses };
                *losses = losses.saturating_add(1);
                let losses = *losses;
                if !losses.is_multiple_of(LOSSES_EACH) {
                    let pause = Queues::conflict_pause(losses);
                    return if is_elsewhere { After::Wait(now + pause) } else { After::Ready };
                }
                let words = format!("its handler lost the database {losses} times: {}", failure.message);
                let own = Failure::new(FailureKind::Error, failure.code.clone(), words)
                    .with_stack(failure.stack.clone());
                self.count(place, entry, &own, now)
            }
            FailureKind::Unavailable(given) => {
                let (name, delivery) = (own_name(given), &entry.work.delivery);
                let said = entry.trouble.as_ref().and_then(|trouble| trouble.unavailable_at);
                let pauses = self.settings.pauses_of(&name);
                if self.dependencies.fails(&name, failure, delivery, said, now, pauses) {
                    entry.trouble().unavailable_at = Some(now);
                    return After::Block(name);
                }
                // Others of its kind succeed: what it says is its own failure.
                entry.trouble().alone = true;
                let own = Failure { kind: FailureKind::Error, ..failure.clone() };
                if is_alone { self.count(place, entry, &own, now) } else { After::Ready }
            }
            _ if !is_alone => {
                // A failure in company counts for nobody: it runs alone, at once.
                entry.trouble().alone = true;
                After::Ready
            }
            _ if self.is_everybodys(&entry.work.delivery, is_probe, now) => {
                entry.trouble().alone = true;
                After::Block(HANDLER.into())
            }
            _ => match self.count(place, entry, failure, now) {
                After::Wait(_) if is_probe && self.is_all_failing() => After::Block(HANDLER.into()),
                after => after,
            },
        }
    }

    /// Somebody's lock is in the way: nobody's fault, and after a while something that people should know.
    /// Answers when it is tried again.
    fn conflict(&mut self, place: &QueuePlace, entry: &mut Entry, why: &str, now: Instant) -> Instant {
        self.metrics.all.conflicts.increment(1);
        let (position, trouble) = (entry.position, entry.trouble());
        let until = now + Queues::conflict_pause(trouble.conflicts);
        trouble.conflicts = trouble.conflicts.saturating_add(1);
        let since = *trouble.in_conflict_since.get_or_insert(now);
        let seconds = now.saturating_duration_since(since).as_secs();
        if seconds >= STALLED_AFTER.as_secs() {
            let why = format!(
                "{}: the message at {position} has met a lock for {seconds} s: {why}. A migration may hold it, or a \
                 transaction that somebody prepared: posthaste doctor",
                place.partition
            );
            self.stuck = Some((now, why));
        }
        until
    }

    /// The failure counts: another try, or the end.
    fn count(&mut self, place: &QueuePlace, entry: &mut Entry, failure: &Failure, now: Instant) -> After {
        entry.work.history.push(self.clock.now(), failure.class(), &failure.code, &failure.message);
        entry.trouble().alone = true;
        let own;
        let failure = match failure.kind {
            FailureKind::Outage => {
                own = Failure { kind: FailureKind::Error, ..failure.clone() };
                &own
            }
            _ => failure,
        };
        let consequence = self.settings.retry.decide(failure, entry.work.attempts, self.clock.chance());
        if let (Consequence::Dead { .. }, Some(until)) = (&consequence, self.spared_until(now)) {
            return After::Wait(until);
        }
        match consequence {
            Consequence::NotCounted => After::Ready,
            Consequence::Dead { attempts, disposition } => {
                entry.work.attempts = attempts;
                tracing::warn!(
                    consumer = %self.plan.name, partition = %place.partition, position = entry.position, id = %entry.work.id,
                    disposition = disposition.as_str(), code = %failure.code, "a message is given up: {}", failure.message
                );
                entry.trouble().next = Next::Bury { disposition, failure: failure.clone() };
                After::Ready
            }
            Consequence::Retry { attempts, delay } => {
                self.metrics.topic(&place.partition.topic).retries.increment(1);
                entry.work.attempts = attempts;
                let is_durable = attempts as usize > self.settings.retry.delays_ms.len();
                let memory = Duration::from_millis(self.settings.memory_wait_max_ms);
                if is_durable || delay > memory {
                    entry.trouble().next = Next::Defer { until: now + delay, failure: failure.clone() };
                    return After::Ready;
                }
                entry.trouble().waits_for = Some(failure.clone());
                After::Wait(now + delay)
            }
        }
    }

    pub(super) fn on_set_aside(
        &mut self,
        place: QueuePlace,
        entries: Vec<Entry>,
        how: &DeferOrBury,
        result: Result<Deferring, InboxError>,
        now: Instant,
    ) -> EngineStep {
        self.transactions -= 1;
        let count = entries.len();
        if let Some(state) = self.state_of(&place) {
            state.running = state.running.saturating_sub(count);
        }
        let outcomes = match result {
            Ok(Deferring { witness, outcomes }) => {
                if !self.check_witness(witness) {
                    return Ok(());
                }
                outcomes
            }
            Err(error) => return self.not_set_aside(&place, entries, &error, now),
        };
        let mut free = Vec::new();
        for (mut entry, outcome) in entries.into_iter().zip(outcomes) {
            match outcome {
                // One that is to be buried never runs.
                SetAside::Settled if matches!(how, DeferOrBury::Bury(_)) => {
                    self.settle(&place, &entry, now);
                }
                // What has its mark may be a dead letter that somebody sent back: T1 tells them apart.
                SetAside::Free | SetAside::Settled => {
                    let trouble = entry.trouble();
                    (trouble.next, trouble.held_since) = (Next::Run, None);
                    free.push(entry);
                }
                SetAside::Kept => {
                    match how {
                        DeferOrBury::Bury(_) => {
                            self.metrics.topic(&place.partition.topic).handled(HandledAs::Dead, 1)
                        }
                        DeferOrBury::Defer { .. } | DeferOrBury::Behind => {
                            self.deferred += 1;
                            self.metrics.topic(&place.partition.topic).handled(HandledAs::Deferred, 1);
                        }
                    }
                    self.settle(&place, &entry, now);
                }
            }
        }
        if let DeferOrBury::Defer { delay, .. } = how {
            self.looks.due = self.looks.due.min(now + *delay);
        }
        // What is left of the queue goes behind it at once. Whether the key is still held is looked at under
        // its lock.
        let goes_behind = free.is_empty()
            && self.plan.order != super::identity::Order::Partition
            && matches!(how, DeferOrBury::Behind | DeferOrBury::Defer { .. });
        if let Some(state) = self.state_of(&place) {
            state.queues.put_back(place.key, free);
            if goes_behind
                && let Some(head) = state.queues.head_mut(place.key)
                && matches!(head.next(), Next::Run)
            {
                head.trouble().next = Next::Behind;
            }
            state.queues.set_ready(place.key);
        }
        Ok(())
    }

    fn not_set_aside(
        &mut self,
        place: &QueuePlace,
        mut entries: Vec<Entry>,
        error: &InboxError,
        now: Instant,
    ) -> EngineStep {
        let mut until = now;
        if let (InboxError::Conflict(why), Some(head)) = (error, entries.first_mut()) {
            until = self.conflict(place, head, why, now);
        }
        if let Some(state) = self.state_of(place) {
            state.queues.put_back(place.key, entries);
            state.queues.set_waiting(place.key, until);
        }
        self.tolerate(error, "setting a message aside", now)
    }

    /// Defers what keeps a position back while more than half of its partition's share of the window is
    /// settled or waits behind it.
    pub(super) fn relieve_positions(&mut self, now: Instant) {
        let is_full = self.deferred >= self.settings.deferred_max;
        if is_full || self.plan.order == super::identity::Order::Partition {
            return;
        }
        let share = self.share();
        for state in self.partitions.values_mut().filter(|state| state.is_reading()) {
            let half = share.of(state) / 2;
            if state.hand.open() <= half {
                continue;
            }
            // Its own queue waits with it, and fills the window as well as what is settled behind it.
            let Some(key) = state.queues.waiting_at(state.position()) else { continue };
            if state.settled_ahead() + state.queues.len(key) <= half {
                continue;
            }
            let until = state.queues.waits_until(key).unwrap_or(now);
            let Some(head) = state.queues.head_mut(key) else { continue };
            let trouble = head.trouble();
            trouble.next = match trouble.waits_for.take() {
                Some(failure) => Next::Defer { until, failure },
                None if trouble.held_since.is_some() => Next::Behind,
                None => continue,
            };
            state.queues.set_ready(key);
        }
    }

    pub(super) fn resume_dependency(&mut self, name: &Arc<str>) {
        for state in self.partitions.values_mut() {
            state.blocked_by.remove(name);
            state.queues.unblock(name);
        }
    }

    /// Remembers and counts a failure, for whoever looks.
    pub(super) fn note(&mut self, topic: &Arc<str>, failure: &Failure) {
        self.metrics.topic(topic).failed(class(&failure.kind));
        self.last_error = Some(format!("{}: {}", failure.code, failure.message));
    }
}

/// What a queue does after its message failed.
enum After {
    Ready,
    Wait(Instant),
    Block(Arc<str>),
}
