//! What a member knows: its partitions, what was read of them, what is in hand, what it has to report. Memory
//! only.

use super::lease::{HeldLease, TakenLease};
use super::tail::{LogLook, Tailed};
use crate::source::hand::Hand;
use crate::source::{
    Batch, Change, Delivery, Drained, Limit, Partition, PartitionView, SourceError, Standing, Ticket,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Read ahead of what was asked for, of each partition.
const AHEAD_MAX: usize = 1_024;
const AHEAD_BYTES_MAX: usize = 4 << 20;
/// Room between two epochs of a lease for the seeks of its owner.
const SEEKS_OF_LEASE: i64 = 1 << 20;

/// A partition of this member.
pub(super) struct LeasedPartition {
    /// The epoch of its lease.
    pub(super) lease: i64,
    /// The epoch of its tickets. It grows with each seek.
    pub(super) epoch: i64,
    /// What is in hand. Without one nobody has said yet where to begin.
    pub(super) hand: Option<Hand<Instant>>,
    /// Read, and not yet handed out.
    ahead: VecDeque<Tailed>,
    ahead_bytes: usize,
    /// Where the next page of the log goes on.
    pub(super) read_to: i64,
    pub(super) paused: bool,
    /// Given up: nothing more goes out, and at this time it goes whatever is in hand.
    pub(super) leaving: Option<Instant>,
    /// Until when the lease is surely ours.
    pub(super) trusted_until: Instant,
    /// Acknowledgements that are being judged.
    pub(super) settling: usize,
    /// The log as the consumer saw it last, and as it was when the reading began.
    pub(super) viewed: Option<Arc<str>>,
    pub(super) began: Option<LogLook>,
    /// Nothing is read before a seek: the position is beyond the end.
    pub(super) is_beyond: bool,
    /// The beginning of a log that came while this member waited for it.
    pub(super) declared: Option<i64>,
    /// When something was read last.
    pub(super) read_at: Instant,
    reading: Option<AbortHandle>,
}

impl LeasedPartition {
    fn new(lease: i64, epoch: i64, trusted_until: Instant) -> Self {
        Self {
            lease,
            epoch,
            hand: None,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            read_to: 0,
            paused: false,
            leaving: None,
            trusted_until,
            settling: 0,
            viewed: None,
            began: None,
            is_beyond: false,
            declared: None,
            read_at: Instant::now(),
            reading: None,
        }
    }

    pub(super) fn out(&self) -> usize {
        self.hand.as_ref().map_or(0, Hand::out)
    }

    /// Whether nothing of it is in hand, nor being settled.
    pub(super) fn is_idle(&self) -> bool {
        self.out() == 0 && self.settling == 0
    }

    /// Whether messages go out.
    pub(super) fn is_open(&self) -> bool {
        !self.paused && self.leaving.is_none() && Instant::now() < self.trusted_until
    }

    pub(super) fn has_room(&self) -> bool {
        self.ahead.len() < AHEAD_MAX && self.ahead_bytes < AHEAD_BYTES_MAX
    }

    pub(super) fn held(&self, partition: &Partition) -> HeldLease {
        HeldLease { partition: partition.clone(), epoch: self.lease }
    }

    fn stop_reading(&mut self) {
        if let Some(reading) = self.reading.take() {
            reading.abort();
        }
        self.ahead.clear();
        self.ahead_bytes = 0;
    }

    /// Another assignment of the same lease, which has to be begun anew.
    fn begin_anew(&mut self, epoch: i64) {
        self.stop_reading();
        (self.epoch, self.hand, self.began, self.viewed) = (epoch, None, None, None);
        (self.paused, self.is_beyond) = (false, false);
        self.read_at = Instant::now();
    }

    fn add(&mut self, tailed: Tailed) {
        match &tailed {
            Tailed::Message(delivery) => {
                self.ahead_bytes += delivery.message.bytes();
                self.read_to = self.read_to.max(delivery.position.unwrap_or(0).saturating_add(1));
            }
            Tailed::Lost(range) => self.read_to = self.read_to.max(range.end),
            Tailed::Empty(until) => self.read_to = self.read_to.max(*until),
        }
        self.ahead.push_back(tailed);
        self.read_at = Instant::now();
    }

    /// Hands out what was read. Losses and empty stretches concern what comes behind them, and the consumer
    /// hears of them before the messages of a batch: so they only go first.
    fn hand_out(&mut self, partition: &Partition, mut events: usize, bytes: &mut usize, batch: &mut Batch) {
        let Some(hand) = &mut self.hand else { return };
        let before = batch.deliveries.len();
        while let Some(tailed) = self.ahead.pop_front() {
            let is_first = batch.deliveries.len() == before;
            match tailed {
                Tailed::Lost(range) if is_first => {
                    let (from, until) = (range.start, range.end);
                    hand.skip_to(until);
                    batch.changes.push(Change::Lost { partition: partition.clone(), from, until });
                }
                Tailed::Empty(until) if is_first => {
                    hand.skip_to(until);
                    let (partition, epoch) = (partition.clone(), self.epoch);
                    batch.changes.push(Change::Empty { partition, epoch, until });
                }
                Tailed::Message(mut delivery) => {
                    let (size, position) = (delivery.message.bytes(), delivery.position.unwrap_or(0));
                    // One message may exceed the bytes, but only as the first of all.
                    if events == 0 || (size > *bytes && !batch.deliveries.is_empty()) {
                        self.ahead.push_front(Tailed::Message(delivery));
                        break;
                    }
                    self.ahead_bytes = self.ahead_bytes.saturating_sub(size);
                    (events, *bytes) = (events - 1, bytes.saturating_sub(size));
                    if position < hand.next() {
                        continue;
                    }
                    hand.deliver(position);
                    (delivery.ticket.epoch, delivery.ticket.number) = (self.epoch, position);
                    batch.deliveries.push(delivery);
                }
                later => {
                    self.ahead.push_front(later);
                    break;
                }
            }
        }
    }
}

impl Drop for LeasedPartition {
    fn drop(&mut self) {
        self.stop_reading();
    }
}

/// A message that was given back and is due: it is read again.
pub(super) struct Again {
    pub(super) partition: Partition,
    pub(super) epoch: i64,
    pub(super) position: i64,
}

/// Everything that a member remembers.
pub(super) struct MemberState {
    pub(super) partitions: BTreeMap<Partition, LeasedPartition>,
    changes: Vec<Change>,
    /// The highest epoch that was given out.
    last_epoch: i64,
    /// Which partition is first at the next look.
    turn: usize,
    pub(super) last_call: Instant,
    fault: Option<SourceError>,
    closing: Option<Instant>,
    closed: bool,
    abandoned: usize,
}

impl MemberState {
    pub(super) fn new() -> Self {
        Self {
            partitions: BTreeMap::new(),
            changes: Vec::new(),
            last_epoch: 0,
            turn: 0,
            last_call: Instant::now(),
            fault: None,
            closing: None,
            closed: false,
            abandoned: 0,
        }
    }

    pub(super) fn owned(&mut self, partition: &Partition) -> Result<&mut LeasedPartition, SourceError> {
        self.partitions.get_mut(partition).ok_or_else(|| SourceError::NotAssigned(partition.clone()))
    }

    pub(super) fn of_epoch(&mut self, partition: &Partition, epoch: i64) -> Option<&mut LeasedPartition> {
        self.partitions.get_mut(partition).filter(|owned| owned.epoch == epoch)
    }

    pub(super) fn set_fault(&mut self, fault: SourceError) {
        self.fault = Some(fault);
    }

    /// An epoch above all before, of this member and of former owners.
    fn epoch_of(&mut self, lease: i64) -> i64 {
        self.last_epoch = lease.saturating_mul(SEEKS_OF_LEASE).max(self.last_epoch.saturating_add(1));
        self.last_epoch
    }

    /// A lease was taken.
    pub(super) fn gain(&mut self, partition: &Partition, taken: &TakenLease, trusted_until: Instant) -> i64 {
        let epoch = self.epoch_of(taken.epoch);
        self.changes.push(Change::Assigned { partition: partition.clone(), epoch });
        self.partitions.insert(partition.clone(), LeasedPartition::new(taken.epoch, epoch, trusted_until));
        epoch
    }

    /// Forgets a partition that is no longer ours.
    pub(super) fn lose(&mut self, partition: &Partition, lease: i64) {
        if self.partitions.get(partition).is_some_and(|owned| owned.lease == lease)
            && let Some(owned) = self.partitions.remove(partition)
        {
            if self.closing.is_some() {
                self.abandoned += owned.out();
            }
            self.changes.push(Change::Revoked { partition: partition.clone(), epoch: owned.epoch });
        }
    }

    /// The partition is begun anew under a higher epoch: its consumer looks at the log again. Answers with
    /// the epoch.
    pub(super) fn begin_anew(&mut self, partition: &Partition, epoch: i64) -> Option<i64> {
        let lease = self.of_epoch(partition, epoch)?.lease;
        let next = self.epoch_of(lease);
        self.changes.push(Change::Revoked { partition: partition.clone(), epoch });
        self.changes.push(Change::Assigned { partition: partition.clone(), epoch: next });
        self.of_epoch(partition, epoch)?.begin_anew(next);
        Some(next)
    }

    /// Reading begins at this position, by this task.
    pub(super) fn read_from(&mut self, partition: &Partition, epoch: i64, from: i64, reading: AbortHandle) {
        match self.of_epoch(partition, epoch) {
            Some(owned) => {
                owned.stop_reading();
                (owned.hand, owned.read_to, owned.reading) = (Some(Hand::new(from)), from, Some(reading));
                owned.declared = None;
            }
            None => reading.abort(),
        }
    }

    pub(super) fn note(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Keeps what a tail brought. `false`: nobody wants it any more.
    pub(super) fn keep(&mut self, partition: &Partition, epoch: i64, tailed: Vec<Tailed>) -> bool {
        let owned = self.of_epoch(partition, epoch).filter(|owned| owned.hand.is_some());
        let Some(owned) = owned else { return false };
        tailed.into_iter().for_each(|tailed| owned.add(tailed));
        true
    }

    /// One look: a sign of life, and what there is.
    pub(super) fn look(
        &mut self,
        limit: Limit,
        in_hand_max: usize,
    ) -> Result<(Batch, Vec<Again>), SourceError> {
        if self.closing.is_some() {
            return Err(SourceError::Closed);
        }
        let now = Instant::now();
        self.last_call = now;
        let mut batch = Batch { changes: std::mem::take(&mut self.changes), deliveries: Vec::new() };
        if !batch.changes.is_empty() {
            return Ok((batch, Vec::new()));
        }
        let open: usize =
            self.partitions.values().filter_map(|owned| owned.hand.as_ref()).map(Hand::open).sum();
        let (mut room, mut events, mut bytes) =
            (in_hand_max.saturating_sub(open).min(limit.events), limit.events, limit.bytes);
        let mut again = Vec::new();
        let names: Vec<Partition> = self.partitions.keys().cloned().collect();
        self.turn = self.turn.wrapping_add(1);
        for index in 0..names.len() {
            let partition = &names[(self.turn + index) % names.len()];
            let Some(owned) = self.partitions.get_mut(partition).filter(|owned| owned.is_open()) else {
                continue;
            };
            let Some(hand) = &owned.hand else { continue };
            for position in hand.due_again(now, events) {
                let (partition, epoch) = (partition.clone(), owned.epoch);
                again.push(Again { partition, epoch, position });
                events -= 1;
            }
            if !hand.is_clear() {
                continue;
            }
            let part = room.div_ceil(names.len() - index).min(events);
            let before = batch.deliveries.len();
            owned.hand_out(partition, part, &mut bytes, &mut batch);
            let count = batch.deliveries.len() - before;
            (room, events) = (room - count, events - count);
        }
        if batch.is_empty()
            && again.is_empty()
            && let Some(fault) = self.fault.take()
        {
            return Err(fault);
        }
        Ok((batch, again))
    }

    /// What was read again goes out. `None`: it is gone from the log, and lost.
    pub(super) fn deliver_again(&mut self, again: &Again, read: Option<Delivery>, batch: &mut Batch) {
        let Some(owned) = self.of_epoch(&again.partition, again.epoch) else { return };
        let Some(hand) = &mut owned.hand else { return };
        match read {
            Some(mut delivery) => {
                hand.deliver_again(again.position);
                (delivery.ticket.epoch, delivery.ticket.number) = (again.epoch, again.position);
                batch.deliveries.push(delivery);
            }
            None => {
                hand.drop_gone(again.position);
                let (partition, from, until) = (again.partition.clone(), again.position, again.position + 1);
                batch.changes.push(Change::Lost { partition, from, until });
            }
        }
    }

    /// When the first message that was given back goes out again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let open = self.partitions.values().filter(|owned| owned.is_open());
        open.filter_map(|owned| owned.hand.as_ref()?.due()).min()
    }

    /// Notes acknowledgements. Answers what they are worth so far, and what to ask the leases about.
    pub(super) fn ack(&mut self, tickets: &[Ticket]) -> (Vec<Standing>, Vec<(HeldLease, Option<i64>)>) {
        let mut standings = Vec::with_capacity(tickets.len());
        let mut touched: Vec<&Partition> = Vec::new();
        for ticket in tickets {
            let owned = self.of_epoch(&ticket.partition, ticket.epoch);
            let is_known =
                owned.and_then(|owned| owned.hand.as_mut()).is_some_and(|hand| hand.ack(ticket.number));
            standings.push(if is_known { Standing::Settled } else { Standing::Revoked });
            if is_known && !touched.contains(&&ticket.partition) {
                touched.push(&ticket.partition);
            }
        }
        let mut settled = Vec::with_capacity(touched.len());
        for partition in touched {
            if let Some(owned) = self.partitions.get_mut(partition) {
                owned.settling += 1;
                settled.push((owned.held(partition), owned.hand.as_ref().map(Hand::committed)));
            }
        }
        (standings, settled)
    }

    /// The end of asking: `None` if there was no answer.
    pub(super) fn acked(&mut self, held: &HeldLease, is_kept: Option<bool>) {
        let owned = self.partitions.get_mut(&held.partition).filter(|owned| owned.lease == held.epoch);
        if let Some(owned) = owned {
            owned.settling = owned.settling.saturating_sub(1);
        }
        if is_kept == Some(false) {
            self.lose(&held.partition, held.epoch);
        }
    }

    pub(super) fn nack(&mut self, ticket: &Ticket, due: Instant) -> Standing {
        let owned = self.of_epoch(&ticket.partition, ticket.epoch);
        match owned.and_then(|owned| owned.hand.as_mut()).is_some_and(|hand| hand.nack(ticket.number, due)) {
            true => Standing::Settled,
            false => Standing::Revoked,
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.partitions.values().any(|owned| owned.leaving.is_some())
    }

    /// Stops: nothing more goes out, and at the deadline everything is given back.
    pub(super) fn close(&mut self, deadline: Instant) {
        self.closing.get_or_insert(deadline);
        self.partitions.values_mut().for_each(|owned| owned.leaving = Some(deadline));
    }

    pub(super) fn closing(&self) -> Option<Instant> {
        self.closing
    }

    pub(super) fn closed(&mut self) {
        self.closed = true;
    }

    pub(super) fn drained(&self) -> Option<Drained> {
        self.closed.then_some(Drained { abandoned: self.abandoned, ..Drained::default() })
    }

    /// The partitions, with the committed position where the leases keep it.
    pub(super) fn views(&self, keeps_positions: bool) -> Vec<PartitionView> {
        let view = |(partition, owned): (&Partition, &LeasedPartition)| PartitionView {
            partition: partition.clone(),
            epoch: owned.epoch,
            committed: owned
                .hand
                .as_ref()
                .filter(|_| keeps_positions)
                .map(Hand::committed)
                .or(owned.declared),
            declared: owned.declared.is_some(),
            first: None,
            end: None,
            log_id: None,
            in_hand: owned.out(),
            paused: owned.paused,
        };
        self.partitions.iter().map(view).collect()
    }
}
