//! What a member knows: its partitions, what is in hand, what it has to report. Memory only.

use super::fetch::PartitionRead;
use crate::broker::group::{Held, TakenPartition};
use crate::broker::look::StoredMessage;
use posthaste::source::hand::Hand;
use posthaste::source::{
    Batch, Change, Delivery, Drained, Partition, PartitionView, SourceError, Standing, Ticket,
};
use std::collections::BTreeMap;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A partition of this member.
pub(super) struct Owned {
    pub(super) row: i64,
    pub(super) epoch: i64,
    pub(super) hand: Hand<Instant>,
    pub(super) paused: bool,
    /// Given up: nothing more goes out, and at this time it goes whatever is in hand.
    pub(super) leaving: Option<Instant>,
    /// The committed position as far as the file has it. Whatever is given back is given back from here: an
    /// acknowledgement that is still being written is then revoked, and was not written either.
    durable: i64,
    /// Acknowledgements that are being written.
    settling: usize,
    /// How often a former owner died here, and up to which position it may have read.
    crashes: u32,
    suspect_until: i64,
}

impl Owned {
    pub(super) fn new(row: i64, epoch: i64, from: i64) -> Self {
        Self {
            row,
            epoch,
            hand: Hand::new(from),
            paused: false,
            leaving: None,
            durable: from,
            settling: 0,
            crashes: 0,
            suspect_until: 0,
        }
    }

    /// Whether nothing of it is in hand, nor being settled.
    pub(super) fn is_idle(&self) -> bool {
        self.hand.out() == 0 && self.settling == 0
    }

    /// Whether messages go out.
    pub(super) fn is_open(&self) -> bool {
        !self.paused && self.leaving.is_none()
    }

    pub(super) fn held(&self) -> Held {
        Held { row: self.row, epoch: self.epoch, committed: self.durable }
    }

    fn delivery(&self, partition: &Partition, stored: StoredMessage, nacks: u32) -> Delivery {
        let suspicion = if stored.position < self.suspect_until { self.crashes } else { 0 };
        Delivery {
            ticket: Ticket { partition: partition.clone(), epoch: self.epoch, number: stored.position },
            position: Some(stored.position),
            redelivery: Some(nacks.saturating_add(suspicion)),
            published_at: Some(stored.published_at),
            address: None,
            message: stored.message,
        }
    }

    pub(super) fn deliver_new(
        &mut self,
        partition: &Partition,
        messages: Vec<StoredMessage>,
        batch: &mut Batch,
    ) {
        for stored in messages {
            let (from, until) = (self.hand.next(), stored.position);
            if until > from {
                // Positions are dense: what is missing was removed.
                batch.changes.push(Change::Lost { partition: partition.clone(), from, until });
                self.hand.skip_to(until);
            }
            self.hand.deliver(stored.position);
            batch.deliveries.push(self.delivery(partition, stored, 0));
        }
    }

    pub(super) fn deliver_again(&mut self, partition: &Partition, reading: PartitionRead, batch: &mut Batch) {
        for position in reading.gone {
            let (from, until) = (position, position + 1);
            batch.changes.push(Change::Lost { partition: partition.clone(), from, until });
            self.hand.drop_gone(position);
        }
        for stored in reading.messages {
            let nacks = self.hand.deliver_again(stored.position);
            batch.deliveries.push(self.delivery(partition, stored, nacks));
        }
    }
}

/// Everything that a member remembers.
pub(super) struct MemberState {
    pub(super) partitions: BTreeMap<Partition, Owned>,
    pub(super) changes: Vec<Change>,
    /// How often groups had changed at the last heartbeat.
    pub(super) group_changes: i64,
    /// Hearts of the other members.
    pub(super) others: Vec<String>,
    /// Which partition is first at the next look.
    pub(super) turn: usize,
    pub(super) last_call: Instant,
    /// Whether the group knows this member.
    pub(super) joined: bool,
    fault: Option<SourceError>,
    closing: Option<Instant>,
    closed: bool,
    pub(super) abandoned: usize,
}

impl MemberState {
    pub(super) fn new() -> Self {
        Self {
            partitions: BTreeMap::new(),
            changes: Vec::new(),
            group_changes: 0,
            others: Vec::new(),
            turn: 0,
            last_call: Instant::now(),
            joined: false,
            fault: None,
            closing: None,
            closed: false,
            abandoned: 0,
        }
    }

    /// A sign of life. A member that had been given up joins again.
    pub(super) fn called(&mut self, beat_now: &Notify) -> Result<(), SourceError> {
        if self.closing.is_some() {
            return Err(SourceError::Closed);
        }
        self.last_call = Instant::now();
        if !self.joined {
            beat_now.notify_one();
        }
        Ok(())
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn take_fault(&mut self) -> Option<SourceError> {
        self.fault.take()
    }

    pub(super) fn set_fault(&mut self, fault: Option<SourceError>) {
        self.fault = fault;
    }

    pub(super) fn owned(&mut self, partition: &Partition) -> Result<&mut Owned, SourceError> {
        self.partitions.get_mut(partition).ok_or_else(|| SourceError::NotAssigned(partition.clone()))
    }

    /// When the first message that was given back goes out again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.partitions.values().filter(|owned| owned.is_open()).filter_map(|owned| owned.hand.due()).min()
    }

    fn of_ticket(&mut self, ticket: &Ticket) -> Option<&mut Owned> {
        self.partitions.get_mut(&ticket.partition).filter(|owned| owned.epoch == ticket.epoch)
    }

    pub(super) fn row_of(&mut self, ticket: &Ticket) -> Option<i64> {
        self.of_ticket(ticket).map(|owned| owned.row)
    }

    /// Notes acknowledgements. Answers what they are worth so far, and what to commit.
    pub(super) fn ack(&mut self, tickets: &[Ticket]) -> (Vec<Standing>, Vec<(Partition, Held)>) {
        let mut standings = Vec::with_capacity(tickets.len());
        let mut touched: Vec<&Partition> = Vec::new();
        for ticket in tickets {
            let known = self.of_ticket(ticket).is_some_and(|owned| owned.hand.ack(ticket.number));
            standings.push(if known { Standing::Settled } else { Standing::Revoked });
            if known && !touched.contains(&&ticket.partition) {
                touched.push(&ticket.partition);
            }
        }
        let mut held = Vec::with_capacity(touched.len());
        for partition in touched {
            if let Some(owned) = self.partitions.get_mut(partition) {
                owned.settling += 1;
                let (row, epoch, committed) = (owned.row, owned.epoch, owned.hand.committed());
                held.push((partition.clone(), Held { row, epoch, committed }));
            }
        }
        (standings, held)
    }

    /// The end of writing acknowledgements: `None` if it failed, else whether the partition was still ours.
    pub(super) fn acked(&mut self, held: &Held, kept: Option<bool>) {
        let mut all = self.partitions.values_mut();
        if let Some(owned) = all.find(|owned| owned.row == held.row && owned.epoch == held.epoch) {
            owned.settling = owned.settling.saturating_sub(1);
            if kept == Some(true) {
                owned.durable = owned.durable.max(held.committed);
            }
        }
        if kept == Some(false) {
            self.lose(held.row, held.epoch);
        }
    }

    pub(super) fn nack(&mut self, ticket: &Ticket, due: Instant) -> Standing {
        match self.of_ticket(ticket).is_some_and(|owned| owned.hand.nack(ticket.number, due)) {
            true => Standing::Settled,
            false => Standing::Revoked,
        }
    }

    /// Which partition it is, if it is still ours.
    pub(super) fn partition_of(&self, held: &Held) -> Option<Partition> {
        let mut all = self.partitions.iter();
        let of = all.find(|(_, owned)| owned.row == held.row && owned.epoch == held.epoch);
        of.map(|(partition, _)| partition.clone())
    }

    /// Forgets a partition that is no longer ours.
    pub(super) fn lose(&mut self, row: i64, epoch: i64) {
        let Some(partition) = self.partition_of(&Held { row, epoch, committed: 0 }) else { return };
        self.partitions.remove(&partition);
        self.changes.push(Change::Revoked { partition, epoch });
    }

    pub(super) fn gain(&mut self, taken: TakenPartition) {
        let partition = Partition { topic: taken.topic, number: taken.number };
        let Held { row, epoch, committed } = taken.held;
        self.changes.push(Change::Assigned { partition: partition.clone(), epoch });
        if committed < taken.first {
            let (from, until) = (committed, taken.first);
            self.changes.push(Change::Lost { partition: partition.clone(), from, until });
        }
        let mut owned = Owned::new(row, epoch, committed.max(taken.first));
        (owned.crashes, owned.suspect_until) = (taken.crashes, taken.next);
        self.partitions.insert(partition, owned);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.partitions.values().any(|owned| owned.leaving.is_some())
    }

    /// Stops: nothing more goes out, and at the deadline everything is given back.
    pub(super) fn close(&mut self, deadline: Instant) {
        self.closing.get_or_insert(deadline);
        for owned in self.partitions.values_mut() {
            owned.leaving = Some(deadline);
        }
    }

    pub(super) fn closing(&self) -> Option<Instant> {
        self.closing
    }

    /// Everything is given back.
    pub(super) fn closed(&mut self) {
        self.closed = true;
    }

    pub(super) fn drained(&self) -> Option<Drained> {
        self.closed.then_some(Drained { abandoned: self.abandoned, ..Drained::default() })
    }

    pub(super) fn views(&self) -> Vec<PartitionView> {
        let view = |(partition, owned): (&Partition, &Owned)| PartitionView {
            partition: partition.clone(),
            epoch: owned.epoch,
            committed: Some(owned.hand.committed()),
            declared: false,
            first: None,
            end: None,
            log_id: None,
            in_hand: owned.hand.out(),
            paused: owned.paused,
        };
        self.partitions.iter().map(view).collect()
    }
}
