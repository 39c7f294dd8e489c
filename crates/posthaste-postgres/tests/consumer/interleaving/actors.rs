//! Who acts: members that read the partition, looks at what is deferred, and an operator.
//!
//! A member here is the engine without its clocks: what it does next is thrown, and within what the engine's
//! rules allow. A key's messages run in order, nothing behind an unsettled one; what failed in company runs
//! alone; what is held waits, or is copied behind the hold.

use super::world::{World, partition};
use crate::failing::PATIENCE;
use crate::fixture::actor;
use posthaste::admin::{AdminError, DeadAct, DeadFilter};
use posthaste::consumer::admin::ConsumerAdmin;
use posthaste::consumer::policy::Consequence;
use posthaste::consumer::store::{
    Burial, DeferOrBury, DueHeads, DueOutcome, InboxError, InboxStore, MessageOutcome, SavedPosition,
    SetAside, Witness, Work,
};
use posthaste::consumer::{ConsumerRetry, Failure, FailureKind};
use posthaste::inbox::kept::KeptHeaders;
use posthaste::store::StoreError;
use posthaste_postgres::PostgresAdmin;
use posthaste_postgres::consumer::PostgresInbox;
use posthaste_testkit::faults::Dice;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// What a member does at most; then it is gone, with whatever it had in hand.
const DEEDS_MAX: usize = 30;

/// Three runs, at once.
pub(super) fn retry() -> ConsumerRetry {
    ConsumerRetry { delays_ms: vec![0, 0], then: None }
}

fn is_conflict(error: &InboxError) -> bool {
    match error {
        InboxError::Conflict(_) => true,
        other => panic!("{other}"),
    }
}

struct Entry {
    work: Work,
    is_settled: bool,
}

/// A member with messages of the partition in its hands.
pub(super) struct Member {
    pub(super) world: Arc<World>,
    pub(super) inbox: Arc<PostgresInbox>,
    pub(super) name: &'static str,
    pub(super) dice: Dice,
    hand: Vec<Entry>,
    from: i64,
    seeks: i64,
    witness: Witness,
}

impl Member {
    pub(super) fn new(
        world: &Arc<World>,
        inbox: &Arc<PostgresInbox>,
        name: &'static str,
        dice: &mut Dice,
    ) -> Self {
        let (world, inbox, dice) = (Arc::clone(world), Arc::clone(inbox), dice.fork());
        Self { world, inbox, name, dice, hand: Vec::new(), from: 0, seeks: 0, witness: Witness::default() }
    }

    /// Reads the partition to its end: from the position that was saved, or once more from the beginning, as
    /// a zombie has it in its hands.
    pub(super) async fn read(&mut self, from_saved: bool) {
        let taken = loop {
            match self.inbox.take(&[partition()], self.name).await {
                Ok(taking) => {
                    self.witness = taking.witness;
                    break taking.taken.into_iter().next().expect("the partition");
                }
                Err(error) => assert!(is_conflict(&error)),
            }
        };
        self.seeks = taken.seeks;
        self.from = if from_saved { taken.position.unwrap_or(0) } else { 0 };
        let (from, skipped) = (usize::try_from(self.from).expect("a position"), &self.world.skipped);
        let entry = |work: &Work| Entry { is_settled: skipped.contains(&work.id), work: work.clone() };
        self.hand = self.world.log[from..].iter().map(entry).collect();
        for _ in 0..DEEDS_MAX {
            let batch = self.next_batch();
            if batch.is_empty() {
                break;
            }
            self.apply(&batch).await;
            if self.dice.happens(0.3) {
                self.save().await;
            }
        }
        self.save().await;
    }

    /// Some messages of some keys, each key's in order from its first that is not settled.
    fn next_batch(&mut self) -> Vec<usize> {
        let mut batch: Vec<usize> = Vec::new();
        let mut refused: Vec<Option<Uuid>> = Vec::new();
        let most = self.dice.index(4) + 1;
        for at in 0..self.hand.len() {
            let key = self.hand[at].work.order_id;
            if self.hand[at].is_settled || refused.contains(&key) || batch.len() == most {
                continue;
            }
            match self.dice.happens(0.75) {
                true => batch.push(at),
                false => refused.push(key),
            }
        }
        if batch.is_empty() {
            batch.extend(self.hand.iter().position(|entry| !entry.is_settled));
        }
        batch
    }

    async fn apply(&mut self, batch: &[usize]) {
        let works: Vec<Work> = batch.iter().map(|at| self.hand[*at].work.clone()).collect();
        let error = match self.inbox.apply(None, &works, PATIENCE).await {
            Ok(applying) => {
                let mut held: Vec<usize> = Vec::new();
                for (at, outcome) in batch.iter().zip(applying.outcomes) {
                    match outcome {
                        MessageOutcome::Held => held.push(*at),
                        _ => self.hand[*at].is_settled = true,
                    }
                }
                return self.go_behind(held).await;
            }
            Err(error) => error,
        };
        match (error.failure.kind.clone(), error.at) {
            (FailureKind::Conflict, _) => {}
            (FailureKind::Error | FailureKind::Poison(_), Some(failed)) if batch.len() == 1 => {
                self.set_aside(batch[failed], error.failure).await;
            }
            // What was before it is applied again, and it runs alone.
            (FailureKind::Error | FailureKind::Poison(_), Some(failed)) => {
                if failed > 0 {
                    Box::pin(self.apply(&batch[..failed])).await;
                }
                if self.is_first(batch[failed]) {
                    Box::pin(self.apply(&batch[failed..=failed])).await;
                }
            }
            _ => panic!("{:?}", error.failure),
        }
    }

    /// Nothing of its key is before it.
    fn is_first(&self, at: usize) -> bool {
        let key = self.hand[at].work.order_id;
        !self.hand[..at].iter().any(|entry| entry.work.order_id == key && !entry.is_settled)
    }

    /// Held messages wait in memory, or go behind the hold, key by key.
    async fn go_behind(&mut self, mut held: Vec<usize>) {
        while let Some(first) = held.first() {
            let key = self.hand[*first].work.order_id;
            let (same, others): (Vec<usize>, Vec<usize>) =
                held.iter().partition(|at| self.hand[**at].work.order_id == key);
            held = others;
            if self.dice.happens(0.9) {
                let count = self.dice.index(same.len()) + 1;
                self.defer(&same[..count], &DeferOrBury::Behind).await;
            }
        }
    }

    /// A message failed alone.
    async fn set_aside(&mut self, at: usize, failure: Failure) {
        let spent = self.hand[at].work.attempts;
        match retry().decide(&failure, spent, 0.0) {
            Consequence::Retry { attempts, delay } => {
                self.hand[at].work.attempts = attempts;
                if self.dice.happens(0.7) {
                    let key = self.hand[at].work.order_id;
                    let is_behind = |other: &usize| {
                        self.hand[*other].work.order_id == key && !self.hand[*other].is_settled
                    };
                    let behind: Vec<usize> = (at..self.hand.len()).filter(is_behind).collect();
                    let count = self.dice.index(behind.len().min(3)) + 1;
                    self.defer(&behind[..count], &DeferOrBury::Defer { delay, failure }).await;
                }
            }
            Consequence::Dead { attempts, disposition } => {
                self.hand[at].work.attempts = attempts;
                let (letter, holds_key) = (Uuid::now_v7(), self.world.dead_hold);
                let burial = Burial { letter, disposition, failure, holds_key };
                self.defer(&[at], &DeferOrBury::Bury(burial)).await;
            }
            Consequence::NotCounted => {}
        }
    }

    async fn defer(&mut self, key: &[usize], how: &DeferOrBury) {
        let works: Vec<Work> = key.iter().map(|at| self.hand[*at].work.clone()).collect();
        match self.inbox.defer(None, &works, how).await {
            Ok(deferring) => {
                for (at, outcome) in key.iter().zip(deferring.outcomes) {
                    self.hand[*at].is_settled |= outcome != SetAside::Free;
                }
            }
            Err(error) => assert!(is_conflict(&error)),
        }
    }

    async fn save(&mut self) {
        let settled = self.hand.iter().take_while(|entry| entry.is_settled).count();
        let saved = SavedPosition {
            partition: partition(),
            position: Some(self.from + settled as i64),
            position_time: None,
            log_id: None,
            in_hand: None,
            seeks: self.seeks,
            release: false,
        };
        match self.inbox.save(self.name, self.witness, &[saved], None).await {
            Ok(saving) => assert_eq!(saving.witness, self.witness),
            Err(error) => assert!(is_conflict(&error)),
        }
    }

    /// Whether everything of the partition is settled by this member.
    pub(super) fn is_done(&self) -> bool {
        self.hand.iter().all(|entry| entry.is_settled)
    }
}

/// One look at what is deferred. `None`: somebody was in the way.
pub(super) async fn look(world: &World, inbox: &PostgresInbox, messages_max: usize) -> Option<DueOutcome> {
    let heads = DueHeads {
        messages_max,
        handler_time_max: PATIENCE,
        handler_timeout: PATIENCE,
        retry: retry(),
        dead_hold: world.dead_hold,
        unavailable_pause: Duration::ZERO,
        careful: false,
        chance: 0.0,
    };
    match inbox.apply_deferred(&heads).await {
        Ok(due) => Some(due),
        Err(error) => {
            assert!(is_conflict(&error));
            None
        }
    }
}

/// Looks at what is deferred a few times.
pub(super) async fn looks(world: Arc<World>, inbox: Arc<PostgresInbox>, mut dice: Dice) {
    for _ in 0..dice.between(3, 6) {
        look(&world, &inbox, dice.index(4) + 1).await;
    }
}

/// An operator, who replays and discards letters and copies ranges.
pub(super) struct Operator {
    pub(super) world: Arc<World>,
    pub(super) admin: Arc<PostgresAdmin>,
    pub(super) dice: Dice,
}

/// Whether an act was done. It may have waited for too long, or somebody was quicker.
fn is_done(acted: Result<u64, AdminError>) -> bool {
    match acted {
        Ok(count) => count > 0,
        Err(AdminError::Conflict { .. } | AdminError::Store(StoreError::Transient { .. })) => false,
        Err(error) => panic!("{error}"),
    }
}

impl Operator {
    pub(super) async fn act(mut self) {
        for _ in 0..self.dice.between(2, 5) {
            match self.dice.index(10) {
                0..=5 => self.one_letter(DeadAct::Replay).await,
                6 => self.one_letter(DeadAct::Discard).await,
                _ => self.range().await,
            }
        }
    }

    async fn one_letter(&mut self, act: DeadAct) {
        let all = DeadFilter::default();
        let letters = self.admin.letters("billing", &all, None, 100).await.expect("the letters");
        if letters.is_empty() {
            return;
        }
        let letter = &letters[self.dice.index(letters.len())];
        let one = DeadFilter { ids: vec![letter.letter], ..DeadFilter::default() };
        let acted = self.admin.letter_act("billing", &one, act, &actor(), 10).await;
        if is_done(acted) && act == DeadAct::Discard && !letter.repeat {
            self.world.ledger().discarded.insert(letter.id.clone());
        }
    }

    /// Copies messages that end at the saved position, at most: those of a repeat are asked for so, the
    /// others are all that there is, as if somebody had moved the position backwards after they were read.
    async fn range(&mut self) {
        let found = self.admin.consumers(Some("billing")).await.expect("the consumer");
        let saved = found.first().and_then(|found| found.partitions.first()?.position).unwrap_or(0);
        let log = &self.world.log;
        let repeat = self.dice.happens(0.2);
        let to = if repeat { usize::try_from(saved).expect("a position") } else { log.len() };
        let range = &log[self.dice.index(to + 1)..to];
        for work in range.iter().filter(|_| repeat) {
            *self.world.ledger().repeats.entry(work.id.to_string()).or_default() += 1;
        }
        is_done(self.admin.copy_range("billing", range, repeat, &KeptHeaders::default(), &actor()).await);
    }
}
