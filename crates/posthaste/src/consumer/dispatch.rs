//! What is ready goes into transactions: batches of key queues, probes of dependencies, messages set aside.

use super::engine::Engine;
use super::errands::Answer;
use super::failing::HANDLER;
use super::identity::Order;
use super::partition::PartitionState;
use super::queue::{Company, ConflictTurn, Next};
use super::settings::OnDead;
use super::store::{Burial, DeferOrBury, Witness, Work};
use super::transaction::{QueuePlace, Transaction};
use crate::crash_point;
use crate::mutation::{Mutation, active};
use crate::store::Care;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Messages of one transaction after deaths, before they go one by one.
const SMALL_BATCH: usize = 8;

impl Engine {
    pub(super) fn start_transactions(&mut self, now: Instant) {
        while self.is_open()
            && self.transactions < self.transactions_max()
            && !self.is_suspect_out
            && !(self.is_careful() && self.is_look_first(now))
        {
            let allowed = self.rate.as_mut().map_or(usize::MAX, |rate| rate.allowance(now));
            if allowed == 0 || !(self.start_probe(now) || self.start_transaction(allowed)) {
                break;
            }
        }
    }

    /// Where one thing runs at a time, looks at the deferred and transactions take turns.
    fn is_look_first(&self, now: Instant) -> bool {
        self.looks.is_out || (self.is_looks_turn && self.looks.is_due(now))
    }

    pub(super) fn transactions_max(&self) -> usize {
        // One message at a time in the whole process: what is in hand at a death is charged with it (F21).
        if self.is_careful() { 1 } else { self.settings.transactions_max }
    }

    pub(super) fn is_careful(&self) -> bool {
        self.partitions.values().any(PartitionState::is_one_by_one)
    }

    /// Lets one head probe a dependency whose turn it is.
    fn start_probe(&mut self, now: Instant) -> bool {
        for name in self.dependencies.probes(now) {
            let mut first: Option<(u64, QueuePlace)> = None;
            let paused = self.partitions.iter().filter(|(_, state)| state.blocked_by.contains(&name));
            for (partition, state) in paused {
                for (key, head) in state.queues.candidates(&name) {
                    let turn = head.trouble.as_ref().map_or(0, |trouble| trouble.probed);
                    let is_next = first.as_ref().is_none_or(|(best, _)| turn < *best);
                    if is_next
                        && matches!(head.next(), Next::Run)
                        && self.dependencies.needs(&name, &head.work.delivery)
                    {
                        first =
                            Some((turn, QueuePlace { partition: partition.clone(), life: state.life, key }));
                    }
                }
            }
            let Some((_, place)) = first else {
                if self.is_all_failing() && *name == *HANDLER {
                    self.probe_deferred(now);
                    continue;
                }
                self.release_dependency(&name);
                continue;
            };
            self.probes += 1;
            let turn = self.probes;
            let Some(state) = self.partitions.get_mut(&place.partition) else { continue };
            let mut entries = state.queues.take_aside(place.key, 1);
            entries
                .iter_mut()
                .for_each(|entry| (entry.trouble().probed, entry.trouble().alone) = (turn, true));
            self.dependencies.probe(&name);
            let mut transaction = Transaction::probe(name);
            transaction.add(place, entries);
            self.run_transaction(transaction);
            return true;
        }
        false
    }

    /// Nobody waits for a dependency any more: its partitions go on, and the next message that needs it says.
    pub(super) fn release_dependency(&mut self, name: &Arc<str>) {
        self.resume_dependency(name);
        self.dependencies.forget(name);
    }

    /// Takes what is ready into one transaction. `false`: nothing is.
    fn start_transaction(&mut self, allowed: usize) -> bool {
        let mut transaction = Transaction::default();
        let most = self.batch_size.messages(self.settings.batch_max).min(allowed);
        loop {
            let turn = self.conflict_turn();
            let first = self.partitions.iter().filter(|(_, state)| state.is_open()).filter_map(
                |(partition, state)| {
                    state
                        .queues
                        .first_ready(turn)
                        .map(|(at, key)| (at, partition, state.care.clone(), state.life, key))
                },
            );
            let is_later = |(company, _): (Company, u64)| {
                (company == Company::AloneInConflict) != (turn == ConflictTurn::First)
            };
            let Some(((company, _), partition, care, life, key)) =
                first.min_by_key(|(at, ..)| (is_later(*at), *at))
            else {
                break;
            };
            let most = match care {
                Care::None => most,
                Care::Small => most.min(SMALL_BATCH),
                Care::OneByOne { .. } => 1,
            };
            let must_be_alone = company != Company::Any || matches!(care, Care::OneByOne { .. });
            let room = most.saturating_sub(transaction.len());
            let bytes = self.settings.batch_bytes_max.saturating_sub(transaction.bytes);
            if !transaction.is_empty() && (must_be_alone || room == 0 || bytes == 0) {
                break;
            }
            let place = QueuePlace { partition: partition.clone(), life, key };
            let Some(state) = self.partitions.get_mut(&place.partition) else { break };
            let head = state.queues.head_mut(key);
            // Only alone may a message be larger than a transaction.
            if !transaction.is_empty() && head.as_ref().is_some_and(|head| head.bytes > bytes) {
                break;
            }
            let is_suspect = head.as_ref().is_some_and(|head| head.is_suspect());
            let next = head.map(|head| head.next()).unwrap_or_default();
            if !matches!(next, Next::Run) {
                self.start_aside(place, next);
                return true;
            }
            if is_suspect && (self.transactions > 0 || self.looks.is_out) {
                return false;
            }
            self.is_suspect_out |= is_suspect;
            let entries = state.queues.take(key, room, bytes);
            transaction.add(place, entries);
            transaction.is_in_conflict = company == Company::AloneInConflict;
            if must_be_alone {
                break;
            }
        }
        if transaction.is_empty() {
            return false;
        }
        self.is_conflicts_turn = !transaction.is_in_conflict;
        self.run_transaction(transaction);
        true
    }

    /// Messages that have met a lock take turns with the others, and have at most half of the transactions.
    /// Each of them may wait for as long as a handler may take, again and again.
    fn conflict_turn(&self) -> ConflictTurn {
        let most = (self.transactions_max() / 2).max(1);
        match self.is_conflicts_turn {
            _ if self.in_conflict >= most => ConflictTurn::Never,
            true => ConflictTurn::First,
            false => ConflictTurn::Last,
        }
    }

    fn run_transaction(&mut self, transaction: Transaction) {
        if let Some(rate) = &mut self.rate {
            rate.spend(transaction.len());
        }
        let mut in_hand = None;
        for (place, count) in transaction.places() {
            let Some(state) = self.partitions.get_mut(&place.partition) else { continue };
            state.running += count;
            if active(Mutation::SettleBeforeAck) {
                transaction
                    .works
                    .iter()
                    .filter_map(|work| work.delivery.position)
                    .for_each(|at| state.settle(at));
            }
            if state.is_one_by_one() {
                state.is_in_hand_written = true;
                state.in_hand = transaction.works.first().and_then(|work| work.delivery.position);
                in_hand = Some(state.to_save(&place.partition, None));
            }
        }
        self.transactions += 1;
        self.in_conflict += usize::from(transaction.is_in_conflict);
        self.is_looks_turn = true;
        let (store, member, witness) =
            (Arc::clone(&self.plan.store), Arc::clone(&self.plan.member), self.witness);
        let timeout = self.settings.handler_timeout();
        self.ask("transaction", async move {
            if let (Some(in_hand), Some(witness)) = (&in_hand, witness) {
                // A failure only means that a death now is charged to nobody.
                let _ = store.save(&member, witness, std::slice::from_ref(in_hand), None).await;
            }
            poison(&transaction.works);
            let began = Instant::now();
            let result = store.apply(asked(witness), &transaction.works, timeout).await;
            // CRASH(consume.committed): effects and marks are there, the position is not saved. They are
            // delivered again, and are duplicates (G5).
            crash_point!("consume.committed");
            Answer::Applied { transaction, began, result }
        });
    }

    /// Sets the head of a queue aside, and what goes with it.
    pub(super) fn start_aside(&mut self, place: QueuePlace, next: Next) {
        let dead_hold = self.settings.on_dead == OnDead::Hold;
        let is_full = self.deferred >= self.settings.deferred_max;
        let batch_max = self.settings.batch_max;
        let is_copied = self.plan.order != Order::Partition;
        let Some(state) = self.partitions.get_mut(&place.partition) else { return };
        let now = Instant::now();
        let (how, most) = match next {
            Next::Run => return state.queues.set_ready(place.key),
            // No more room among the deferred: they wait here, and so does the position (G7).
            Next::Defer { until, .. } if is_full => return state.wait_instead(place.key, until),
            Next::Behind if is_full => return state.wait_instead(place.key, now + Duration::from_secs(1)),
            Next::Defer { until, failure } => {
                let delay = until.saturating_duration_since(now);
                (DeferOrBury::Defer { delay, failure }, if is_copied { batch_max } else { 1 })
            }
            Next::Behind => (DeferOrBury::Behind, batch_max),
            Next::Bury { disposition, failure } => {
                let letter = Uuid::now_v7();
                (DeferOrBury::Bury(Burial { letter, disposition, failure, holds_key: dead_hold }), 1)
            }
        };
        let entries = state.queues.take_aside(place.key, most);
        state.running += entries.len();
        self.transactions += 1;
        let (store, witness) = (Arc::clone(&self.plan.store), self.witness);
        self.ask("set aside", async move {
            let works: Vec<Work> = entries.iter().map(|entry| entry.work.clone()).collect();
            let result = store.defer(asked(witness), &works, &how).await;
            Answer::SetAside { place, entries, how, result }
        });
    }
}

/// The life of the database that messages were taken from: no other one is to touch them.
fn asked(witness: Option<Witness>) -> Option<Witness> {
    witness.filter(|_| !active(Mutation::AnyLife))
}

/// Lets a test's message kill the process, as a bug in a handler would. The header is not the relay's: the
/// event of a dead letter has it too.
#[cfg(feature = "failpoints")]
fn poison(works: &[Work]) {
    let has_header = |work: &Work| work.delivery.message.header("x-posthaste-test-abort-consumer").is_some();
    if works.iter().any(has_header) {
        // CRASH(consume.poison): a message kills its process again and again; it ends as a dead letter (F21).
        crash_point!("consume.poison");
        std::process::abort();
    }
}

#[cfg(not(feature = "failpoints"))]
fn poison(_: &[Work]) {}
