//! What the model keeps, and the questions that its transactions ask of it. Pure.

use super::ById;
use bytes::Bytes;
use posthaste::admin::history::History;
use posthaste::consumer::store::{Burial, ConsumerControls, ProcessReport, Work};
use posthaste::consumer::{Disposition, Failure};
use posthaste::event::Timestamp;
use posthaste::mutation::{Mutation, active};
use posthaste::source::{Delivery, Partition};
use posthaste::store::Deaths;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Due when what it waits behind is gone.
pub(super) const NEVER: Timestamp = Timestamp(i64::MAX);

/// What a mark says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkOutcome {
    /// Its effects are committed.
    Done,
    /// It is among the deferred.
    Deferred,
    /// It is a dead letter, or was one that somebody discarded.
    Dead,
}

/// A mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// What became of the message.
    pub outcome: MarkOutcome,
    /// Where it came from.
    pub partition: Partition,
    /// Its position there.
    pub position: Option<i64>,
    /// When it was made.
    pub at: Timestamp,
}

/// One effect of a handler, committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The consumer.
    pub consumer: String,
    /// The message.
    pub id: String,
    /// Where it came from.
    pub partition: Partition,
    /// Its position there.
    pub position: Option<i64>,
    /// Its key.
    pub key: Option<Bytes>,
    /// Which attempt it was.
    pub attempt: u32,
}

/// A deferred message.
#[derive(Debug, Clone)]
pub struct SetAsideRow {
    /// Its place in its key.
    pub seq: i64,
    /// The message, its attempts so far and how they failed.
    pub work: Work,
    /// Whether later messages of its key wait for it. All do but the rows of a range replay.
    pub holds: bool,
    /// Whether it is handled again although it is done.
    pub repeat: bool,
    /// Attempts before its last replay.
    pub earlier_attempts: u32,
    /// How often it was replayed.
    pub replays: u32,
    /// When it is due; at the end of all time if it waits behind another.
    pub due_at: Timestamp,
    /// Why it failed last.
    pub failure: Option<Failure>,
    /// Since when it waits.
    pub deferred_at: Timestamp,
}

impl SetAsideRow {
    /// Whether it waits behind another of its key.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.due_at == NEVER
    }
}

/// A dead letter.
#[derive(Debug, Clone)]
pub struct BuriedMessage {
    /// The message as it was set aside.
    pub row: SetAsideRow,
    /// How it was given up.
    pub burial: Burial,
    /// When.
    pub dead_at: Timestamp,
}

/// A partition of a consumer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionRow {
    /// Everything before it is decided.
    pub position: Option<i64>,
    /// The broker's time of the record before it.
    pub position_time: Option<Timestamp>,
    /// Which log it belongs to.
    pub log_id: Option<String>,
    /// How often an operator moved it.
    pub seeks: i64,
    /// Who took it last.
    pub owner: Option<String>,
    /// When.
    pub taken_at: Option<Timestamp>,
    /// Whether it was given back.
    pub clean: bool,
    /// What was in hand alone.
    pub in_hand: Option<i64>,
    /// Owners that died here.
    pub deaths: Deaths,
}

/// All tables.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    /// By consumer and message id.
    pub marks: ById<Mark>,
    /// By number.
    pub deferred: BTreeMap<i64, SetAsideRow>,
    /// By letter.
    pub letters: BTreeMap<Uuid, BuriedMessage>,
    /// By consumer and partition.
    pub partitions: BTreeMap<(String, Partition), PartitionRow>,
    /// By consumer.
    pub controls: BTreeMap<String, ConsumerControls>,
    /// By process.
    pub processes: BTreeMap<String, ProcessReport>,
    /// In the order of their commits.
    pub effects: Vec<Effect>,
    pub(super) last_seq: i64,
    /// The consumer of each deferred row.
    pub(super) consumers: BTreeMap<i64, String>,
}

/// What is kept in order: the topic and the order's id.
pub(super) type OrderKey = (Arc<str>, Uuid);

pub(super) fn order_key(work: &Work) -> Option<OrderKey> {
    Some((Arc::clone(&work.delivery.partition().topic), work.order_id?))
}

pub(super) fn mark_of(delivery: &Delivery, outcome: MarkOutcome, at: Timestamp) -> Mark {
    Mark { outcome, partition: delivery.partition().clone(), position: delivery.position, at }
}

impl Tables {
    fn is_of(&self, consumer: &str, row: &SetAsideRow) -> bool {
        self.consumers.get(&row.seq).is_some_and(|of| of == consumer)
    }

    /// A consumer's deferred messages, by number.
    pub fn deferred_of<'a, 'b>(
        &'a self,
        consumer: &'b str,
    ) -> impl Iterator<Item = &'a SetAsideRow> + use<'a, 'b> {
        self.deferred.values().filter(move |row| self.is_of(consumer, row))
    }

    /// A consumer's dead letters, by number.
    #[must_use]
    pub fn letters_of(&self, consumer: &str) -> Vec<&BuriedMessage> {
        let mut letters: Vec<&BuriedMessage> =
            self.letters.values().filter(|letter| self.is_of(consumer, &letter.row)).collect();
        letters.sort_by_key(|letter| letter.row.seq);
        letters
    }

    /// Whether something of the key is in the way.
    pub(super) fn is_held(&self, consumer: &str, key: Option<&OrderKey>) -> bool {
        let of_key = |work: &Work| key.is_some() && order_key(work).as_ref() == key;
        self.deferred_of(consumer).any(|row| row.holds && of_key(&row.work))
            || self.letters_of(consumer).iter().any(|dead| dead.burial.holds_key && of_key(&dead.row.work))
    }

    pub(super) fn draw_seq(&mut self, consumer: &str) -> i64 {
        self.last_seq += 1;
        self.consumers.insert(self.last_seq, consumer.to_owned());
        self.last_seq
    }

    pub(super) fn set_mark(&mut self, consumer: &str, id: &str, mark: Mark) {
        self.marks.insert((consumer.to_owned(), id.to_owned()), mark);
    }

    pub(super) fn mark(&self, consumer: &str, id: &str) -> Option<&Mark> {
        self.marks.get(&(consumer.to_owned(), id.to_owned()))
    }

    /// The rows of a queue, in order: those of one key that hold, or those that do not. Without a key each
    /// row is a queue of its own.
    pub(super) fn queue(&self, consumer: &str, row: &SetAsideRow) -> Vec<&SetAsideRow> {
        let key = order_key(&row.work);
        let same = |other: &&SetAsideRow| match &key {
            Some(_) => other.holds == row.holds && order_key(&other.work) == key,
            None => other.seq == row.seq,
        };
        self.deferred_of(consumer).filter(same).collect()
    }

    /// Whether a dead letter with a lower number holds the key.
    pub(super) fn is_behind_a_letter(&self, consumer: &str, row: &SetAsideRow) -> bool {
        let key = order_key(&row.work);
        let holds = |letter: &&BuriedMessage| {
            letter.burial.holds_key && letter.row.seq < row.seq && order_key(&letter.row.work) == key
        };
        key.is_some() && self.letters_of(consumer).iter().any(holds)
    }

    /// Whether it is the first of its queue and nothing dead is in its way.
    pub(super) fn is_head(&self, consumer: &str, row: &SetAsideRow) -> bool {
        self.queue(consumer, row).first().is_some_and(|first| first.seq == row.seq)
            && !self.is_behind_a_letter(consumer, row)
    }

    /// Something of this row's key has left: the first of each queue of it becomes due.
    pub(super) fn promote(&mut self, consumer: &str, left: &Work, now: Timestamp) {
        let Some(key) = order_key(left) else { return };
        let heads: Vec<i64> = self
            .deferred_of(consumer)
            .filter(|row| order_key(&row.work).as_ref() == Some(&key))
            .filter(|row| row.is_behind() && self.is_head(consumer, row))
            .map(|row| row.seq)
            .collect();
        for seq in heads {
            if let Some(row) = self.deferred.get_mut(&seq) {
                row.due_at = now;
            }
        }
    }

    /// Gives a row up, under its number.
    pub(super) fn bury(&mut self, consumer: &str, mut row: SetAsideRow, burial: Burial, now: Timestamp) {
        self.deferred.remove(&row.seq);
        row.failure = Some(burial.failure.clone());
        row.work.attempts += std::mem::take(&mut row.earlier_attempts);
        let work = row.work.clone();
        if !row.repeat {
            self.set_mark(consumer, &work.id, mark_of(&work.delivery, MarkOutcome::Dead, now));
        }
        let consumers = &self.consumers;
        let is_former = |old: &BuriedMessage| {
            (&old.row.work.id, old.row.repeat) == (&work.id, row.repeat)
                && consumers.get(&old.row.seq).is_some_and(|of| of == consumer)
        };
        self.letters.retain(|_, old| !is_former(old));
        self.letters.insert(burial.letter, BuriedMessage { row, burial, dead_at: now });
        self.promote(consumer, &work, now);
    }

    /// T2r: a letter is a deferred row again, under its old number. With a copy of the message that somebody
    /// sent, it has the copy's bytes. `false`: somebody was quicker.
    pub(super) fn replay(
        &mut self,
        consumer: &str,
        letter: Uuid,
        copy: Option<&Work>,
        now: Timestamp,
    ) -> bool {
        let Some(found) = self.letters.get(&letter) else { return false };
        let mut row = found.row.clone();
        if !row.repeat {
            let dead =
                self.mark(consumer, &row.work.id).is_some_and(|mark| mark.outcome == MarkOutcome::Dead);
            if !dead {
                return false;
            }
            if let Some(copy) = copy {
                row.work.delivery = Arc::clone(&copy.delivery);
            }
            self.set_mark(consumer, &row.work.id, mark_of(&row.work.delivery, MarkOutcome::Deferred, now));
        }
        self.letters.remove(&letter);
        row.earlier_attempts = std::mem::take(&mut row.work.attempts);
        row.replays += 1;
        row.due_at = if row.work.order_id.is_some() { NEVER } else { now };
        let work = row.work.clone();
        self.deferred.insert(row.seq, row);
        self.promote(consumer, &work, now);
        true
    }

    /// Marks of what was done so long ago, or is dead without a letter: below the saved position of their
    /// partition or without one.
    pub(super) fn purge_marks(&mut self, consumer: &str, before: Timestamp) -> u64 {
        let count = self.marks.len();
        let partitions = &self.partitions;
        let letters = self.letters_of(consumer).into_iter().filter(|letter| !letter.row.repeat);
        let open: BTreeSet<Arc<str>> = letters.map(|letter| Arc::clone(&letter.row.work.id)).collect();
        self.marks.retain(|(of, id), mark| {
            let saved = partitions.get(&(of.clone(), mark.partition.clone())).and_then(|row| row.position);
            let decided = match mark.position {
                None => true,
                Some(_) if active(Mutation::PurgeAbovePosition) => true,
                Some(position) => saved.is_some_and(|saved| position < saved),
            };
            let over = match mark.outcome {
                MarkOutcome::Done => true,
                MarkOutcome::Deferred => false,
                MarkOutcome::Dead => !open.contains(&**id),
            };
            !(of == consumer && over && mark.at < before && decided)
        });
        (count - self.marks.len()) as u64
    }
}

/// A row for a message that is set aside now.
pub(super) fn row(seq: i64, work: &Work, due_at: Timestamp, now: Timestamp) -> SetAsideRow {
    SetAsideRow {
        seq,
        work: work.clone(),
        holds: true,
        repeat: false,
        earlier_attempts: 0,
        replays: 0,
        due_at,
        failure: None,
        deferred_at: now,
    }
}

/// One more attempt in the history of a message.
pub(super) fn noted(history: &History, failure: &Failure, now: Timestamp) -> History {
    let mut history = history.clone();
    history.push(now, failure.class(), &failure.code, &failure.message);
    history
}

/// How a row that dies is given up.
pub(super) fn burial(
    row: &SetAsideRow,
    disposition: Disposition,
    failure: Failure,
    dead_hold: bool,
) -> Burial {
    let holds_key = dead_hold && row.holds && !row.repeat && row.work.order_id.is_some();
    Burial { letter: Uuid::now_v7(), disposition, failure, holds_key }
}
