//! What a member remembers: its partitions, what is in hand, what was read and waits. Memory only.

use super::client::KafkaClient;
use posthaste::source::hand::Hand;
use posthaste::source::{
    Change, Delivery, Drained, Limit, Partition, PartitionView, SourceError, Standing, Ticket,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bounds of what is read and not handed out: a few calls of `next`.
pub(super) const READY_MAX: usize = 1_024;
pub(super) const READY_BYTES_MAX: usize = 4 << 20;
/// Messages of one partition in a row, while others have some too.
const RUN: usize = 64;

/// Where the client reads, and where it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It reads where it should.
    Set,
    /// It is to be moved to this position.
    Move(i64),
    /// Something was given back. The client is moved when its time has come.
    Back,
    /// The position is beyond the end of the log. Nothing comes before a seek.
    Beyond,
}

/// The settled position of a partition, under its epoch.
pub(super) type SettledPosition = (Partition, i64, i64);

/// A partition of this member.
pub(super) struct OwnedPartition {
    pub(super) epoch: i64,
    pub(super) hand: Hand<Instant>,
    pub(super) place: Place,
    /// The position that the client reads next, after what was read.
    pub(super) at: i64,
    /// What was read and waits to be handed out.
    ready: VecDeque<Delivery>,
    /// The client's own position at the end of the partition, behind markers that are no messages.
    seen: i64,
    /// Where markers were stepped over, until the consumer hears of it.
    stepped: Option<i64>,
    /// The committed position, as far as the broker has it.
    durable: Option<i64>,
    /// Where it began as declared, for the group had no position here.
    pub(super) declared: Option<i64>,
    /// Whether the broker has a message here, or has named the position itself.
    proven: bool,
    /// Acknowledgements that are being committed.
    settling: usize,
    pub(super) paused: bool,
    /// Whether the client was told to pause it.
    pub(super) is_silent: bool,
    /// Given up: nothing more goes out, and at this time it goes whatever is in hand.
    pub(super) leaving: Option<Instant>,
}

impl OwnedPartition {
    fn new(epoch: i64, from: i64, place: Place, durable: Option<i64>, proven: bool) -> Self {
        Self {
            epoch,
            hand: Hand::new(from),
            place,
            at: from,
            ready: VecDeque::new(),
            seen: from,
            stepped: None,
            durable,
            declared: durable.is_none().then_some(from),
            proven,
            settling: 0,
            paused: false,
            is_silent: false,
            leaving: None,
        }
    }

    fn is_open(&self) -> bool {
        !self.paused && self.leaving.is_none()
    }

    /// Whether the committed position is not the settled one. A position that nobody has confirmed is
    /// committed when the partition goes.
    pub(super) fn wants_commit(&self) -> bool {
        self.place != Place::Beyond
            && (self.proven || self.leaving.is_some())
            && self.durable != Some(self.hand.committed())
    }

    /// Whether nothing of it is in hand, nor being committed.
    fn is_idle(&self) -> bool {
        self.hand.out() == 0 && self.settling == 0 && !self.wants_commit()
    }

    /// Whether it may be given up: it is empty, or its time is over and what was settled is committed.
    pub(super) fn may_go(&self, now: Instant, grace: Duration) -> bool {
        let over = |extra| self.leaving.is_none_or(|deadline| deadline + extra <= now);
        self.is_idle() || over(if self.wants_commit() { grace } else { Duration::ZERO })
    }

    /// Whether the client should read nothing of it. What was given back passes a full member's pause.
    pub(super) fn wants_silence(&self, full: bool) -> bool {
        !self.is_open() || self.place == Place::Back || (full && self.hand.is_clear())
    }

    /// Forgets what was read and not handed out; it is read again.
    pub(super) fn read_again(&mut self) {
        self.ready.clear();
        self.seen = self.hand.next();
        if self.place != Place::Beyond {
            self.place = if self.hand.is_clear() { Place::Move(self.hand.next()) } else { Place::Back };
        }
    }

    /// The client is moved to what was given back, when that is due.
    pub(super) fn go_back(&mut self, now: Instant) {
        if self.place == Place::Back && self.hand.due().is_none_or(|due| due <= now) {
            let first = self.hand.given_back().next();
            self.place = Place::Move(first.unwrap_or_else(|| self.hand.next()));
        }
    }

    /// Takes a message that was read.
    fn take(&mut self, mut delivery: Delivery) {
        let position = delivery.ticket.number;
        if self.place != Place::Set || self.leaving.is_some() {
            return;
        }
        if !self.hand.is_clear() {
            // Compaction took what was given back and is not there any more: a newer one has its key.
            let gone = |back: &i64| (self.at..position).contains(back);
            let gone: Vec<i64> = self.hand.given_back().filter(gone).collect();
            gone.into_iter().for_each(|back| self.hand.drop_gone(back));
        }
        self.at = position + 1;
        self.proven = true;
        if position >= self.hand.next() || self.hand.due_at(position).is_some() {
            delivery.ticket.epoch = self.epoch;
            self.ready.push_back(delivery);
        }
    }

    /// The client has read up to this position, and found no more messages.
    fn reached(&mut self, position: i64) {
        // A partition that leaves takes nothing more, so its client may be ahead of us.
        if self.place == Place::Set && self.leaving.is_none() {
            self.seen = self.seen.max(position);
            self.at = self.at.max(position);
            self.step_over();
        }
    }

    fn step_over(&mut self) {
        if self.ready.is_empty() && self.hand.next() < self.seen {
            self.hand.skip_to(self.seen);
            self.stepped = Some(self.seen);
        }
    }

    /// The next message that may go out, if it has at most so many bytes.
    fn pop(&mut self, now: Instant, bytes: usize) -> Option<Delivery> {
        // A group without a position gets one before its first message.
        if !self.is_open() || self.durable.is_none() {
            return None;
        }
        loop {
            let front = self.ready.front()?;
            let (position, again) = (front.ticket.number, front.ticket.number < self.hand.next());
            match self.hand.due_at(position) {
                None if again => drop(self.ready.pop_front()),
                Some(due) if due > now => return None,
                None if !self.hand.is_clear() => return None,
                _ if front.message.bytes() > bytes => return None,
                Some(_) => {
                    self.hand.deliver_again(position);
                    return self.ready.pop_front();
                }
                None => {
                    self.hand.deliver(position);
                    let delivery = self.ready.pop_front();
                    self.step_over();
                    return delivery;
                }
            }
        }
    }

    /// The log begins at `first`, above where the client is. What was read already is still handed out.
    fn lose_below(&mut self, partition: &Partition, first: i64) -> Vec<Change> {
        let lost = |from, until| Change::Lost { partition: partition.clone(), from, until };
        let gone: Vec<i64> = self.hand.given_back().filter(|back| (self.at..first).contains(back)).collect();
        let mut changes: Vec<Change> = gone.iter().map(|back| lost(*back, back + 1)).collect();
        gone.into_iter().for_each(|back| self.hand.drop_gone(back));
        let unread = self.at.max(self.hand.next());
        if unread < first {
            changes.push(lost(unread, first));
        }
        (self.proven, self.place) = (true, Place::Move(first));
        self.seen = self.seen.max(first);
        self.step_over();
        changes
    }
}

/// Everything that a member remembers.
pub(super) struct Membership {
    pub(super) partitions: BTreeMap<Partition, OwnedPartition>,
    pub(super) changes: Vec<Change>,
    pub(super) client: Option<Arc<KafkaClient>>,
    pub(super) log_id: Option<Arc<str>>,
    pub(super) last_call: Instant,
    pub(super) fault: Option<SourceError>,
    pub(super) closing: Option<Instant>,
    pub(super) closed: bool,
    abandoned: usize,
    last_epoch: i64,
    /// Which partition is first at the next call.
    turn: usize,
}

impl Membership {
    pub(super) fn new() -> Self {
        Self {
            partitions: BTreeMap::new(),
            changes: Vec::new(),
            client: None,
            log_id: None,
            last_call: Instant::now(),
            fault: None,
            closing: None,
            closed: false,
            abandoned: 0,
            last_epoch: 0,
            turn: 0,
        }
    }

    pub(super) fn owned(&mut self, partition: &Partition) -> Result<&mut OwnedPartition, SourceError> {
        self.partitions.get_mut(partition).ok_or_else(|| SourceError::NotAssigned(partition.clone()))
    }

    fn of_ticket(&mut self, ticket: &Ticket) -> Option<&mut OwnedPartition> {
        self.partitions.get_mut(&ticket.partition).filter(|owned| owned.epoch == ticket.epoch)
    }

    /// A partition begins here, under a new epoch.
    pub(super) fn begin(
        &mut self,
        partition: Partition,
        from: i64,
        place: Place,
        durable: Option<i64>,
        proven: bool,
    ) -> i64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX - 1);
        let epoch = micros.max(self.last_epoch + 1);
        self.last_epoch = epoch;
        self.changes.push(Change::Assigned { partition: partition.clone(), epoch });
        let mut owned = OwnedPartition::new(epoch, from, place, durable, proven);
        owned.leaving = self.closing;
        self.partitions.insert(partition, owned);
        epoch
    }

    /// A partition is no longer ours.
    pub(super) fn lose(&mut self, partition: &Partition) -> Option<OwnedPartition> {
        let owned = self.partitions.remove(partition)?;
        if self.closing.is_some() {
            self.abandoned += owned.hand.out();
        }
        self.changes.push(Change::Revoked { partition: partition.clone(), epoch: owned.epoch });
        Some(owned)
    }

    /// Goes on elsewhere. What the consumer and the client were told about the partition stays.
    pub(super) fn seek(&mut self, partition: &Partition, to: i64, proven: bool) -> Result<i64, SourceError> {
        let before = self.owned(partition)?;
        let (durable, declared) = (before.durable, before.declared);
        let (is_silent, leaving) = (before.is_silent, before.leaving);
        let was = Change::Revoked { partition: partition.clone(), epoch: before.epoch };
        self.changes.push(was);
        let epoch = self.begin(partition.clone(), to, Place::Move(to), durable, proven);
        let owned = self.owned(partition)?;
        (owned.declared, owned.is_silent, owned.leaving) = (declared, is_silent, leaving);
        Ok(epoch)
    }

    /// Where the log really is, for a partition whose position is not there. Of a log that lost its end and
    /// has grown again the position is another record's: what is new before it would be passed over.
    pub(super) fn misplaced(
        &mut self,
        partition: &Partition,
        at: i64,
        (first, end): (i64, i64),
        is_truncated: bool,
    ) {
        let Some(owned) = self.partitions.get_mut(partition) else { return };
        if owned.place != Place::Set || owned.at != at {
            return;
        }
        if at < first {
            let changes = owned.lose_below(partition, first);
            self.changes.extend(changes);
        } else if at > end || is_truncated {
            owned.place = Place::Beyond;
            let (partition, end) = (partition.clone(), Some(end).filter(|end| at > *end));
            self.changes.push(Change::Beyond { partition, position: at, end });
        } else {
            owned.place = Place::Move(at);
        }
    }

    pub(super) fn take(&mut self, read: Vec<Delivery>) {
        for delivery in read {
            if let Some(owned) = self.partitions.get_mut(&delivery.ticket.partition) {
                owned.take(delivery);
            }
        }
    }

    /// What the consumer has not heard yet.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.changes);
        for (partition, owned) in &mut self.partitions {
            let (partition, epoch) = (partition.clone(), owned.epoch);
            changes.extend(owned.stepped.take().map(|until| Change::Empty { partition, epoch, until }));
        }
        changes
    }

    pub(super) fn reached(&mut self, partition: &Partition, position: i64) {
        if let Some(owned) = self.partitions.get_mut(partition) {
            owned.reached(position);
        }
    }

    /// How many more messages may be read now. What was given back has its place already. What a paused
    /// partition has in hand takes no room from others.
    pub(super) fn room(&self, in_hand_max: usize) -> usize {
        let (mut used, mut ready, mut bytes) = (0, 0, 0);
        for owned in self.partitions.values() {
            if !owned.paused {
                used += owned.hand.open() - owned.hand.given_back().count();
            }
            ready += owned.ready.len();
            bytes += owned.ready.iter().map(|delivery| delivery.message.bytes()).sum::<usize>();
        }
        let room = in_hand_max.saturating_sub(used + ready).min(READY_MAX.saturating_sub(ready));
        if bytes >= READY_BYTES_MAX { 0 } else { room }
    }

    /// Makes room: what was read of partitions that deliver nothing now is read again later.
    pub(super) fn forget_held(&mut self) {
        let held = |owned: &&mut OwnedPartition| !owned.is_open() && !owned.ready.is_empty();
        self.partitions.values_mut().filter(held).for_each(OwnedPartition::read_again);
    }

    /// What goes out now. Partitions take turns.
    pub(super) fn hand_out(&mut self, limit: Limit) -> Vec<Delivery> {
        let (now, mut out, mut bytes) = (Instant::now(), Vec::new(), limit.bytes);
        let count = self.partitions.len().max(1);
        self.turn = (self.turn + 1) % count;
        let mut before = usize::MAX;
        while before != out.len() && out.len() < limit.events {
            before = out.len();
            for owned in self.partitions.values_mut().skip(self.turn) {
                owned.run(now, limit.events, &mut bytes, &mut out);
            }
            for owned in self.partitions.values_mut().take(self.turn) {
                owned.run(now, limit.events, &mut bytes, &mut out);
            }
        }
        out
    }

    /// When the first message that was given back goes out again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.partitions.values().filter(|owned| owned.is_open()).filter_map(|owned| owned.hand.due()).min()
    }

    /// Notes acknowledgements. Answers what they are worth so far, and which partitions they are of.
    pub(super) fn ack(&mut self, tickets: &[Ticket]) -> (Vec<Standing>, Vec<SettledPosition>) {
        let mut touched: Vec<&Partition> = Vec::new();
        let mut standings = Vec::with_capacity(tickets.len());
        for ticket in tickets {
            let known = self.of_ticket(ticket).is_some_and(|owned| owned.hand.ack(ticket.number));
            standings.push(if known { Standing::Settled } else { Standing::Revoked });
            if known && !touched.contains(&&ticket.partition) {
                touched.push(&ticket.partition);
            }
        }
        let mut settled = Vec::with_capacity(touched.len());
        for partition in touched {
            if let Some(owned) = self.partitions.get_mut(partition) {
                owned.settling += 1;
                settled.push((partition.clone(), owned.epoch, owned.hand.committed()));
            }
        }
        (standings, settled)
    }

    /// Whether the broker does not have this position, and is to get it.
    pub(super) fn lacks(&self, (partition, epoch, position): &SettledPosition) -> bool {
        let owned = self.partitions.get(partition).filter(|owned| owned.epoch == *epoch);
        owned.is_some_and(|owned| owned.durable.is_none_or(|durable| durable < *position))
    }

    /// The end of committing acknowledgements.
    pub(super) fn acked(&mut self, touched: &[SettledPosition]) {
        for (partition, epoch, _) in touched {
            if let Some(owned) = self.partitions.get_mut(partition).filter(|owned| owned.epoch == *epoch) {
                owned.settling = owned.settling.saturating_sub(1);
            }
        }
    }

    pub(super) fn nack(&mut self, ticket: &Ticket, due: Instant) -> Standing {
        let Some(owned) = self.of_ticket(ticket) else { return Standing::Revoked };
        if !owned.hand.nack(ticket.number, due) {
            return Standing::Revoked;
        }
        owned.read_again();
        Standing::Settled
    }

    /// Positions that the broker should have.
    pub(super) fn to_commit(&self) -> Vec<SettledPosition> {
        let wanting = self.partitions.iter().filter(|(_, owned)| owned.wants_commit());
        wanting.map(|(partition, owned)| (partition.clone(), owned.epoch, owned.hand.committed())).collect()
    }

    /// Whether this position is where the partition began as declared, so that nobody has settled anything.
    pub(super) fn declares(&self, (partition, _, position): &SettledPosition) -> bool {
        self.partitions.get(partition).is_some_and(|owned| owned.declared == Some(*position))
    }

    /// The broker has these.
    pub(super) fn committed(&mut self, written: &[SettledPosition]) {
        for (partition, epoch, position) in written {
            if let Some(owned) = self.partitions.get_mut(partition).filter(|owned| owned.epoch == *epoch) {
                owned.durable = Some(*position);
            }
        }
    }

    /// Stops: nothing more goes out, and at the deadline everything is given back.
    pub(super) fn close(&mut self, deadline: Instant) {
        let deadline = *self.closing.get_or_insert(deadline);
        self.partitions.values_mut().for_each(|owned| owned.leaving = Some(deadline));
    }

    /// What is left in hand, when there is no time for a proper end.
    pub(super) fn abandon(&self) -> Drained {
        let out: usize = self.partitions.values().map(|owned| owned.hand.out()).sum();
        Drained { abandoned: self.abandoned + out, ..Drained::default() }
    }

    pub(super) fn drained(&self) -> Option<Drained> {
        self.closed.then_some(Drained { abandoned: self.abandoned, ..Drained::default() })
    }

    pub(super) fn views(&self) -> Vec<PartitionView> {
        let view = |(partition, owned): (&Partition, &OwnedPartition)| PartitionView {
            partition: partition.clone(),
            epoch: owned.epoch,
            committed: owned.durable,
            declared: owned.durable.is_some() && owned.durable == owned.declared,
            first: None,
            end: None,
            log_id: self.log_id.clone(),
            in_hand: owned.hand.out(),
            paused: owned.paused,
        };
        self.partitions.iter().map(view).collect()
    }
}

impl OwnedPartition {
    /// Hands out a few in a row. One message may exceed the bytes, but only as the first of all.
    fn run(&mut self, now: Instant, events: usize, bytes: &mut usize, out: &mut Vec<Delivery>) {
        for _ in 0..RUN.min(events - out.len()) {
            let most = if out.is_empty() { usize::MAX } else { *bytes };
            let Some(delivery) = self.pop(now, most) else { return };
            *bytes = bytes.saturating_sub(delivery.message.bytes());
            out.push(delivery);
        }
    }
}

#[cfg(test)]
mod tests;
