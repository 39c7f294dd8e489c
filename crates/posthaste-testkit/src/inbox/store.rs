//! The model as a store: the four transactions.

use super::tables::{MarkOutcome, NEVER, OrderKey, Tables, mark_of, order_key, row};
use super::transaction::LockName;
use super::{MemoryInbox, MemoryTransaction};
use crate::faults::{Fault, Op};
use async_trait::async_trait;
use futures_util::FutureExt;
use posthaste::consumer::store::{
    ApplyError, Applying, ConsumerRetention, DeferOrBury, Deferring, DueHeads, DueOutcome, InboxError,
    InboxStore, InboxSwept, MessageOutcome, ProcessReport, SavedPosition, Saving, SetAside, Taken, Taking,
    Witness, Work,
};
use posthaste::consumer::{Failure, FailureKind, Message};
use posthaste::event::Timestamp;
use posthaste::mutation::{Mutation, active};
use posthaste::source::{Delivery, Partition};
use posthaste::store::reach;
use std::collections::BTreeSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Instrument;

const DAY_MICROS: i64 = 86_400_000_000;

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn outage(error: InboxError) -> ApplyError {
    let (kind, message) = match error {
        InboxError::Conflict(message) => (FailureKind::Conflict, message),
        InboxError::Unavailable(message) => (FailureKind::Outage, message),
        InboxError::Broken(message) => (FailureKind::Broken, message),
    };
    ApplyError { witness: None, at: None, failure: Failure::new(kind, "memory", message) }
}

impl MemoryInbox {
    /// One call, with what goes wrong with it.
    async fn call<T>(
        &self,
        op: Op,
        call: impl Future<Output = Result<T, InboxError>>,
    ) -> Result<T, InboxError> {
        let (fault, after) = self.faults.before(op).await;
        if fault == Fault::Refuse {
            return Err(InboxError::Unavailable("refused".to_owned()));
        }
        let answer = call.await;
        self.faults.after(fault, after).await;
        match fault {
            Fault::DoThenFail => Err(InboxError::Unavailable("no answer".to_owned())),
            _ => answer,
        }
    }

    /// Runs one handler, with its time and its panics.
    pub(super) async fn run(
        &self,
        tx: &mut MemoryTransaction,
        work: &Work,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let message = Message::new(&self.consumer, work);
        let handling =
            AssertUnwindSafe(self.handler.handle(tx, &message)).catch_unwind().instrument(message.span());
        match tokio::time::timeout(timeout, handling).await {
            Err(_) => Err(Failure::new(FailureKind::Timeout, "handler.timeout", "the handler took too long")),
            Ok(Err(_)) => Err(Failure::new(FailureKind::Panic, "handler.panic", "the handler panicked")),
            Ok(Ok(Err(error))) => Err(Failure::of_handler(error)),
            Ok(Ok(Ok(()))) => Ok(()),
        }
    }

    /// T1, once. `None`: the second look found that a duplicate was deferred meanwhile; it is done again.
    async fn try_apply(
        &self,
        asked: Option<Witness>,
        batch: &[Work],
        timeout: Duration,
    ) -> Result<Option<Applying>, ApplyError> {
        let consumer = &*self.consumer;
        let mut tx = self.begin();
        let witness = tx.witness;
        let keys: Vec<Option<OrderKey>> = batch.iter().map(order_key).collect();
        let look = |tables: &mut Tables| -> Vec<bool> {
            keys.iter().map(|key| tables.is_held(consumer, key.as_ref())).collect()
        };
        let mut held = tx.statement(look).await.map_err(outage)?;
        if witness.is_not(asked) {
            return Err(ApplyError::another_life(witness));
        }
        if active(Mutation::HoldNotAsked) {
            held.fill(false);
        }
        // Sorted: two members with the same messages queue instead of deadlocking.
        let ids: BTreeSet<&str> =
            batch.iter().zip(&held).filter(|(_, held)| !**held).map(|(w, _)| &*w.id).collect();
        let mut firsts = BTreeSet::new();
        for id in ids {
            if tx.insert_mark(id).await.map_err(outage)? {
                firsts.insert(id.to_owned());
            }
        }
        let mut outcomes = Vec::new();
        for (work, held) in batch.iter().zip(&held) {
            outcomes.push(match held {
                true => MessageOutcome::Held,
                false if firsts.remove(&*work.id) => MessageOutcome::Done,
                false => MessageOutcome::Duplicate,
            });
        }
        if outcomes.iter().any(|outcome| *outcome != MessageOutcome::Done) {
            let again = tx.statement(|tables| self.look_again(tables, batch, &mut outcomes)).await;
            if again.map_err(outage)? {
                return Ok(None);
            }
        }
        let began = Instant::now();
        let mut work_done = MemoryTransaction::default();
        for (at, work) in batch.iter().enumerate().filter(|(at, _)| outcomes[*at] == MessageOutcome::Done) {
            let handled = self.run(&mut work_done, work, timeout).await;
            let lost = |_| Failure::new(FailureKind::ConnectionLost, "memory", "the connection was lost");
            let alive = tx.statement(|_| ()).await.map_err(lost);
            if let Err(failure) = alive.and(handled) {
                return Err(ApplyError { witness: Some(witness), at: Some(at), failure });
            }
        }
        let handler_time = began.elapsed();
        if let Some(failure) = work_done.refused {
            return Err(ApplyError { witness: Some(witness), at: None, failure });
        }
        let now = self.database.now();
        let commit = tx.commit(|tables| {
            for (work, _) in batch.iter().zip(&outcomes).filter(|(_, o)| **o == MessageOutcome::Done) {
                tables.set_mark(consumer, &work.id, mark_of(&work.delivery, MarkOutcome::Done, now));
            }
            tables.effects.append(&mut work_done.effects);
        });
        commit.await.map_err(outage)?;
        Ok(Some(Applying { witness, outcomes, handler_time }))
    }

    /// The second look, at everything that is not first. Answers whether the batch is to be taken again.
    fn look_again(&self, tables: &Tables, batch: &[Work], outcomes: &mut [MessageOutcome]) -> bool {
        let consumer = &*self.consumer;
        for (at, work) in batch.iter().enumerate() {
            let (key, outcome) = (order_key(work), outcomes[at]);
            if outcome == MessageOutcome::Done {
                continue;
            }
            let same_key = |(work, outcome): (&Work, &MessageOutcome)| {
                *outcome == MessageOutcome::Done && order_key(work) == key
            };
            let first_behind = key.is_some() && batch.iter().zip(&*outcomes).skip(at + 1).any(same_key);
            let overtakes = outcome == MessageOutcome::Duplicate && first_behind;
            if overtakes && tables.is_held(consumer, key.as_ref()) && !active(Mutation::HoldNotAsked) {
                return true;
            }
            let Some(mark) = tables.mark(consumer, &work.id) else { continue };
            let elsewhere =
                (&mark.partition, mark.position) != (work.delivery.partition(), work.delivery.position);
            let redriven =
                mark.outcome == MarkOutcome::Dead && elsewhere && open_letter(tables, consumer, work);
            outcomes[at] = if redriven { MessageOutcome::Redriven } else { MessageOutcome::Duplicate };
        }
        false
    }

    /// T2r for a copy that somebody sent.
    async fn redrive(&self, work: &Work) -> Result<MessageOutcome, InboxError> {
        let mut tx = self.begin();
        if let Some(key) = order_key(work) {
            tx.lock(LockName::Key(self.consumer.to_string(), key)).await?;
        }
        let now = self.database.now();
        tx.commit(|tables| {
            let letters = tables.letters_of(&self.consumer);
            let letter = letters.iter().find(|letter| !letter.row.repeat && letter.row.work.id == work.id);
            let letter = letter.map(|letter| letter.burial.letter);
            let redriven =
                letter.is_some_and(|letter| tables.replay(&self.consumer, letter, Some(work), now));
            if redriven { MessageOutcome::Redriven } else { MessageOutcome::Duplicate }
        })
        .await
    }

    /// T2.
    async fn set_aside(
        &self,
        asked: Option<Witness>,
        key: &[Work],
        how: &DeferOrBury,
    ) -> Result<Deferring, InboxError> {
        let consumer = &*self.consumer;
        let mut tx = self.begin();
        let witness = tx.witness;
        let order = key.first().and_then(order_key);
        if let Some(order) = order.clone() {
            tx.lock(LockName::Key(consumer.to_owned(), order)).await?;
        }
        let mut firsts = BTreeSet::new();
        for id in key.iter().map(|work| &*work.id).collect::<BTreeSet<&str>>() {
            if tx.insert_mark(id).await? {
                firsts.insert(id.to_owned());
            }
        }
        let mut behind = tx.statement(|tables| tables.is_held(consumer, order.as_ref())).await?;
        if witness.is_not(asked) {
            return Ok(Deferring { witness, outcomes: Vec::new() });
        }
        let now = self.database.now();
        let (mut outcomes, mut rows) = (Vec::new(), Vec::new());
        for (at, work) in key.iter().enumerate() {
            let due_at = match how {
                DeferOrBury::Defer { delay, .. } if at == 0 && !behind => {
                    Some(now.plus_micros(micros(*delay)))
                }
                DeferOrBury::Bury(_) => Some(now),
                _ => behind.then_some(NEVER),
            };
            outcomes.push(match due_at {
                _ if !firsts.remove(&*work.id) => SetAside::Settled,
                Some(due_at) => {
                    rows.push((work, due_at));
                    behind = true;
                    SetAside::Kept
                }
                None => SetAside::Free,
            });
        }
        tx.commit(|tables| {
            for (work, due_at) in rows {
                let seq = tables.draw_seq(consumer);
                let mut row = row(seq, work, due_at, now);
                match how {
                    DeferOrBury::Bury(burial) => {
                        tables.bury(consumer, row, burial.clone(), now);
                        continue;
                    }
                    DeferOrBury::Defer { failure, .. } if due_at != NEVER => {
                        row.failure = Some(failure.clone());
                    }
                    _ => {}
                }
                tables.deferred.insert(seq, row);
                if !active(Mutation::DeferWithoutMark) {
                    let mark = mark_of(&work.delivery, MarkOutcome::Deferred, now);
                    tables.set_mark(consumer, &work.id, mark);
                }
            }
        })
        .await?;
        Ok(Deferring { witness, outcomes })
    }
}

fn open_letter(tables: &Tables, consumer: &str, work: &Work) -> bool {
    let letters = tables.letters_of(consumer);
    letters.iter().any(|letter| !letter.row.repeat && letter.row.work.id == work.id)
}

/// A partition is taken by this member.
fn take(tables: &mut Tables, consumer: &str, partition: &Partition, member: &str, now: Timestamp) -> Taken {
    let mut known =
        tables.partitions.iter().filter(|((of, at), _)| of == consumer && at.topic == partition.topic);
    let knows_topic = known.any(|(_, row)| row.position.is_some());
    let row = tables.partitions.entry((consumer.to_owned(), partition.clone())).or_default();
    let died = !row.clean && row.owner.as_deref().is_some_and(|owner| owner != member);
    if died {
        row.deaths = row.deaths.and_one(row.position.unwrap_or(0), row.in_hand, reach(1));
    }
    let care = row.deaths.care(row.in_hand);
    (row.owner, row.taken_at, row.clean) = (Some(member.to_owned()), Some(now), false);
    Taken {
        partition: partition.clone(),
        position: row.position,
        position_time: row.position_time,
        log_id: row.log_id.clone(),
        seeks: row.seeks,
        care,
        knows_topic,
    }
}

/// One position is saved. Answers the number of seeks.
fn save(tables: &mut Tables, consumer: &str, member: &str, saved: &SavedPosition, now: Timestamp) -> i64 {
    let Some(row) = tables.partitions.get_mut(&(consumer.to_owned(), saved.partition.clone())) else {
        return 0;
    };
    let is_same = row.seeks == saved.seeks;
    if is_same {
        if saved.position.is_some() && saved.position >= row.position {
            row.position_time = saved.position_time;
            row.log_id = saved.log_id.clone().or(row.log_id.take());
        }
        row.position = row.position.max(saved.position);
    }
    // It is given back whatever was sought meanwhile.
    if row.owner.as_deref() == Some(member) && (is_same || saved.release) {
        row.in_hand = saved.in_hand;
        if saved.release {
            let held = row.taken_at.map_or(0, |taken| u64::try_from(now.0 - taken.0).unwrap_or(0));
            let deaths = std::mem::take(&mut row.deaths);
            let place = row.position.unwrap_or(0);
            row.deaths = deaths.given_back(place, Duration::from_micros(held), reach(1));
            (row.clean, row.in_hand) = (true, None);
        }
    }
    row.seeks
}

#[async_trait]
impl InboxStore for MemoryInbox {
    fn takes(&self, delivery: &Delivery) -> bool {
        self.filter.takes_delivery(delivery)
    }

    async fn take(&self, partitions: &[Partition], member: &str) -> Result<Taking, InboxError> {
        let (tx, now) = (self.begin(), self.database.now());
        let witness = tx.witness;
        let take = |tables: &mut Tables| {
            let taken =
                partitions.iter().map(|partition| take(tables, &self.consumer, partition, member, now));
            Taking { witness, taken: taken.collect() }
        };
        self.call(Op::Take, tx.commit(take)).await
    }

    async fn apply(
        &self,
        witness: Option<Witness>,
        batch: &[Work],
        handler_timeout: Duration,
    ) -> Result<Applying, ApplyError> {
        let (fault, after) = self.faults.before(Op::Apply).await;
        if fault == Fault::Refuse {
            return Err(outage(InboxError::Unavailable("refused".to_owned())));
        }
        let mut applying = loop {
            if let Some(applying) = self.try_apply(witness, batch, handler_timeout).await? {
                break applying;
            }
        };
        for (work, outcome) in batch.iter().zip(&mut applying.outcomes) {
            if *outcome == MessageOutcome::Redriven {
                *outcome = self.redrive(work).await.unwrap_or(MessageOutcome::Held);
            }
        }
        self.faults.after(fault, after).await;
        match fault {
            Fault::DoThenFail => Err(outage(InboxError::Unavailable("no answer".to_owned()))),
            _ => Ok(applying),
        }
    }

    async fn defer(
        &self,
        witness: Option<Witness>,
        key: &[Work],
        how: &DeferOrBury,
    ) -> Result<Deferring, InboxError> {
        self.call(Op::Defer, self.set_aside(witness, key, how)).await
    }

    async fn apply_deferred(&self, heads: &DueHeads) -> Result<DueOutcome, InboxError> {
        self.call(Op::ApplyDeferred, self.run_due(heads)).await
    }

    async fn save(
        &self,
        member: &str,
        witness: Witness,
        positions: &[SavedPosition],
        report: Option<&ProcessReport>,
    ) -> Result<Saving, InboxError> {
        let tx = self.begin();
        let (life, now) = (tx.witness, self.database.now());
        let write = |tables: &mut Tables| {
            let key = |saved: &SavedPosition| (self.consumer.to_string(), saved.partition.clone());
            let row = |saved| tables.partitions.get(&key(saved));
            let has_owner = |saved| row(saved).is_some_and(|row| row.owner.is_some() && !row.clean);
            let owned = positions.iter().map(has_owner).collect();
            let seeks = positions.iter().map(|saved| match life == witness {
                true => save(tables, &self.consumer, member, saved, now),
                false => saved.seeks,
            });
            let seeks = seeks.collect();
            if let Some(report) = report {
                tables.processes.insert(report.process.clone(), report.clone());
            }
            let controls = tables.controls.get(&*self.consumer).cloned().unwrap_or_default();
            Saving { witness: life, seeks, owned, controls }
        };
        self.call(Op::Save, tx.commit(write)).await
    }

    async fn sweep(&self, retention: ConsumerRetention, deferred_max: u64) -> Result<InboxSwept, InboxError> {
        let (tx, now, consumer) = (self.begin(), self.database.now(), &*self.consumer);
        let witness = tx.witness;
        let before = |days: u32| now.plus_micros(-DAY_MICROS.saturating_mul(days.into()));
        let clean = |tables: &mut Tables| {
            let old =
                |dead_at| retention.dead_letter_days > 0 && dead_at < before(retention.dead_letter_days);
            let over: Vec<_> =
                tables.letters_of(consumer).into_iter().filter(|l| old(l.dead_at)).cloned().collect();
            for letter in &over {
                tables.letters.remove(&letter.burial.letter);
                tables.promote(consumer, &letter.row.work, now);
            }
            let marks = tables.purge_marks(consumer, before(retention.marks_days));
            let oldest = tables.deferred_of(consumer).map(|row| row.deferred_at).min();
            InboxSwept {
                witness,
                marks,
                letters: over.len() as u64,
                deferred: (tables.deferred_of(consumer).count() as u64).min(deferred_max),
                oldest_deferred: oldest
                    .map(|at| Duration::from_micros(u64::try_from(now.0 - at.0).unwrap_or(0))),
                dead_letters: tables.letters_of(consumer).len() as u64,
            }
        };
        self.call(Op::Sweep, tx.commit(clean)).await
    }
}
