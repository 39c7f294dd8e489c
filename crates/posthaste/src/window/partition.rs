//! What the engine knows of one assigned partition.

use super::queue::{Next, QueueKey, Queues};
use crate::event::Timestamp;
use crate::inbox::store::SavedPosition;
use crate::mutation::{Mutation, active};
use crate::source::hand::Hand;
use crate::source::{Change, Delivery, Partition, Ticket};
use crate::store::Care;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::time::Instant;

/// How far a partition has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It is to be taken from the database.
    Assigned,
    /// The database and the source are being asked.
    Starting,
    /// Its messages are handled.
    Reading,
    /// It cannot go on without an operator, and why.
    Stopped(String),
}

#[derive(Debug)]
struct Delivered {
    position: i64,
    time: Option<Timestamp>,
    ticket: Ticket,
}

/// A partition that is assigned to this member.
#[derive(Debug)]
pub(crate) struct PartitionState {
    /// Unique for each time that the partition is taken: results of an earlier time touch nothing here.
    pub(crate) life: u64,
    /// The epoch of the assignment whose deliveries count.
    pub(crate) epoch: i64,
    /// The highest epoch that the source spoke of.
    pub(crate) announced: i64,
    /// The highest epoch that the source said was over.
    pub(crate) revoked: i64,
    pub(crate) stage: Stage,
    /// What came while it was starting.
    pub(crate) early: Vec<Delivery>,
    pub(crate) early_changes: Vec<Change>,
    /// The source's position that is beyond the end of the log, and that end. What is in hand is handled
    /// first.
    pub(crate) beyond: Option<(i64, Option<i64>)>,
    pub(crate) hand: Hand<Instant>,
    pub(crate) queues: Queues,
    /// What was delivered and is not before the position yet, in order.
    delivered: VecDeque<Delivered>,
    /// The position that reading began with, and the time of the record before it, until that was compared.
    pub(crate) evidence: Option<(i64, Timestamp)>,
    /// The broker's time of the record just before the position.
    pub(crate) position_time: Option<Timestamp>,
    pub(crate) log_id: Option<String>,
    pub(crate) seeks: i64,
    /// Whether the database had a position when it was taken.
    pub(crate) was_known: bool,
    /// What the database has.
    pub(crate) saved: Option<i64>,
    /// Before the position, and to be acknowledged once that is saved; in order.
    unacked: VecDeque<Delivered>,
    /// Messages in open transactions.
    pub(crate) running: usize,
    /// Dependencies that are away: nothing of the partition is begun.
    pub(crate) blocked_by: BTreeSet<Arc<str>>,
    pub(crate) care: Care,
    /// Messages to be settled before it goes as usual again.
    pub(crate) care_left: usize,
    /// The end of the log when it was taken: what kills lies before it, or among the deferred.
    pub(crate) care_end: Option<i64>,
    /// Whether looks at the deferred go carefully, though its own messages do not: a queue's.
    pub(crate) looks_carefully: bool,
    /// Whether a careful look found no deferred message that is due.
    pub(crate) has_looked: bool,
    /// The position written down as in hand.
    pub(crate) in_hand: Option<i64>,
    /// Whether the database has one.
    pub(crate) is_in_hand_written: bool,
    /// The end of the log, as it was last seen.
    pub(crate) end: Option<i64>,
    /// Since when there is lag.
    pub(crate) lag_since: Option<Timestamp>,
    /// Since when it has more than its share of the window.
    pub(crate) crowds_since: Option<Instant>,
    /// Whether it has for so long that it is paused, and others go on.
    pub(crate) is_crowding: bool,
    /// Bytes of the messages in hand.
    pub(crate) bytes: usize,
    /// Whether it is paused at the source, and whether the source is being asked to change that.
    pub(crate) is_paused: bool,
    pub(crate) is_pausing: bool,
}

impl PartitionState {
    pub(crate) fn new(life: u64, epoch: i64) -> Self {
        Self {
            life,
            epoch,
            announced: epoch,
            revoked: i64::MIN,
            stage: Stage::Assigned,
            early: Vec::new(),
            early_changes: Vec::new(),
            beyond: None,
            hand: Hand::new(0),
            queues: Queues::default(),
            delivered: VecDeque::new(),
            evidence: None,
            position_time: None,
            log_id: None,
            seeks: 0,
            was_known: false,
            saved: None,
            unacked: VecDeque::new(),
            running: 0,
            blocked_by: BTreeSet::new(),
            care: Care::None,
            care_left: 0,
            looks_carefully: false,
            care_end: None,
            has_looked: false,
            in_hand: None,
            is_in_hand_written: false,
            end: None,
            lag_since: None,
            crowds_since: None,
            is_crowding: false,
            bytes: 0,
            is_paused: false,
            is_pausing: false,
        }
    }

    /// Reading begins here.
    pub(crate) fn read_from(&mut self, position: i64) {
        self.hand = Hand::new(position);
        self.stage = Stage::Reading;
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.stage == Stage::Reading
    }

    /// Whether everything up to a position beyond the end of the log is handled and saved.
    pub(crate) fn is_at_the_beyond(&self) -> bool {
        let is_reached = self.beyond.is_some_and(|(position, _)| self.hand.next() >= position);
        is_reached && self.is_reading() && self.hand.open() == 0 && self.unsaved().is_none()
    }

    /// Whether the last that was said of it, before it is read, is that it went elsewhere.
    pub(crate) fn is_taken_away(&self) -> bool {
        self.revoked >= self.announced
    }

    /// Whether its messages may run.
    pub(crate) fn is_open(&self) -> bool {
        self.is_reading() && self.blocked_by.is_empty()
    }

    /// The position before which everything is settled.
    pub(crate) fn position(&self) -> i64 {
        if active(Mutation::PassUnsettled) { self.hand.next() } else { self.hand.committed() }
    }

    /// A message is in hand.
    pub(crate) fn deliver(&mut self, position: i64, delivery: &Delivery) {
        self.hand.deliver(position);
        let (time, ticket) = (delivery.published_at, delivery.ticket.clone());
        self.delivered.push_back(Delivered { position, time, ticket });
    }

    /// A message is settled: marked, by whomever, or passed over by declaration.
    pub(crate) fn settle(&mut self, position: i64) {
        self.hand.ack(position);
        let committed = self.hand.committed();
        while let Some(first) = self.delivered.front()
            && first.position < committed
        {
            self.position_time = first.time;
            self.unacked.extend(self.delivered.pop_front());
        }
        self.care_left = self.care_left.saturating_sub(1);
        self.end_care();
    }

    /// Goes on as usual, once what may have killed is behind.
    pub(crate) fn end_care(&mut self) {
        let is_past = self.has_looked && self.care_end.is_some_and(|end| self.position() >= end);
        if (self.care_left == 0 || is_past) && self.care != Care::None {
            tracing::info!("past the dangerous place: back to normal");
            (self.care, self.in_hand) = (Care::None, None);
        }
    }

    /// What is to be written about it. The position is left out where it is not known or not new.
    pub(crate) fn to_save(&self, partition: &Partition, position: Option<i64>) -> SavedPosition {
        SavedPosition {
            partition: partition.clone(),
            position,
            position_time: self.position_time,
            log_id: self.log_id.clone(),
            in_hand: self.in_hand,
            seeks: self.seeks,
            release: false,
        }
    }

    /// The position, if the database does not have it yet.
    pub(crate) fn unsaved(&self) -> Option<i64> {
        let is_to_be_cleared = self.is_in_hand_written && self.in_hand.is_none();
        let is_new = self.saved != Some(self.position()) || is_to_be_cleared;
        (self.is_reading() && is_new).then(|| self.position())
    }

    /// A message that was to be set aside waits here.
    pub(crate) fn wait_instead(&mut self, key: QueueKey, until: Instant) {
        if let Some(head) = self.queues.head_mut(key) {
            head.trouble().next = Next::Run;
        }
        self.queues.set_waiting(key, until);
    }

    /// Messages that are settled behind one that is not.
    pub(crate) fn settled_ahead(&self) -> usize {
        self.hand.open() - self.hand.out()
    }

    /// The broker's time of the oldest message that is not settled.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        self.delivered.front().and_then(|first| first.time)
    }

    /// How many settled messages wait for the position to be saved.
    pub(crate) fn unsaved_messages(&self) -> usize {
        self.unacked.len()
    }

    /// How many settled messages the source has not been told of, also behind what is not settled.
    pub(crate) fn untold(&self) -> usize {
        self.unacked.len() + self.delivered.len().saturating_sub(self.hand.out())
    }

    /// Tickets of what is settled before this position.
    pub(crate) fn tickets_before(&mut self, position: i64) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        while let Some(first) = self.unacked.front()
            && first.position < position
        {
            tickets.extend(self.unacked.pop_front().map(|first| first.ticket));
        }
        tickets
    }

    /// Tickets of all that is settled, also behind what is not: for brokers that are told of each by itself.
    pub(crate) fn settled_tickets(&mut self) -> Vec<Ticket> {
        let ahead = self.delivered.iter().filter(|delivered| self.hand.is_acked(delivered.position));
        let mut tickets: Vec<Ticket> = self.unacked.drain(..).map(|first| first.ticket).collect();
        if self.settled_ahead() > 0 {
            tickets.extend(ahead.map(|delivered| delivered.ticket.clone()));
            self.delivered.retain(|delivered| !self.hand.is_acked(delivered.position));
        }
        tickets
    }

    /// How carefully to go, in messages of one transaction.
    pub(crate) fn is_one_by_one(&self) -> bool {
        matches!(self.care, Care::OneByOne { .. })
    }
}

/// A partition that was taken away: what is left to be written about it.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) partition: Partition,
    pub(crate) state: PartitionState,
    /// Open transactions are waited for until then.
    pub(crate) until: Instant,
}
