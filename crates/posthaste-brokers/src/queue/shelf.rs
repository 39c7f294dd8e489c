//! What a member has in hand of its queues. Memory only, behind one lock.
//!
//! A queue's deliveries are numbered, under the epoch of the connection that brought them. What was given
//! back waits here, never at the broker: a requeue would put it behind others. Where order is asked for,
//! nothing behind it goes out before it.

use posthaste::source::{
    Batch, Change, Delivery, Limit, NackOrder, Partition, PartitionView, SourceError, Standing, Ticket,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShelfState {
    /// It came, and nobody has it.
    Fresh,
    /// With the consumer.
    Out,
    /// Given back; it goes out again at this time.
    Back(Instant),
}

#[derive(Debug)]
struct Shelved {
    delivery: Delivery,
    stage: ShelfState,
    /// How often it was given back here.
    nacks: u32,
}

/// Acknowledgements that are to be written, and who waits for that.
#[derive(Debug)]
pub(crate) struct Acks {
    /// The numbers of what is acknowledged.
    pub(crate) tags: Vec<u64>,
    pub(crate) written: oneshot::Sender<()>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Shelf {
    pub(crate) partition: Partition,
    epoch: i64,
    is_up: bool,
    is_paused: bool,
    held: BTreeMap<i64, Shelved>,
    /// The highest tag of this connection.
    last: i64,
    acks: Vec<Acks>,
    /// Acknowledgements that are on their way. A drain waits for them.
    being_written: usize,
}

/// All queues of a member.
#[derive(Debug)]
pub(crate) struct Shelves {
    pub(crate) queues: Vec<Shelf>,
    changes: VecDeque<Change>,
    /// What `next` is to say when it has nothing better.
    pub(crate) fault: Option<SourceError>,
    pub(crate) is_closing: bool,
    pub(crate) last_call: Instant,
    nack_order: NackOrder,
    in_hand_max: usize,
    /// Which queue is asked first.
    turn: usize,
}

impl Shelf {
    fn out(&self) -> usize {
        self.held.values().filter(|held| held.stage == ShelfState::Out).count()
    }

    fn settles(&self, ticket: &Ticket) -> bool {
        self.is_up && ticket.epoch == self.epoch && ticket.number <= self.last
    }
}

impl Shelves {
    pub(crate) fn new(topics: &[String], nack_order: NackOrder, in_hand_max: usize) -> Self {
        let shelf = |topic: &String| Shelf {
            partition: Partition::new(topic.as_str(), 0),
            epoch: 0,
            is_up: false,
            is_paused: false,
            held: BTreeMap::new(),
            last: 0,
            acks: Vec::new(),
            being_written: 0,
        };
        Self {
            queues: topics.iter().map(shelf).collect(),
            changes: VecDeque::new(),
            fault: None,
            is_closing: false,
            last_call: Instant::now(),
            nack_order,
            in_hand_max,
            turn: 0,
        }
    }

    /// The queue is read by a connection of its own from now on. Epochs are times, so that the next member's
    /// are higher too.
    pub(crate) fn assign(&mut self, index: usize) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let queue = &mut self.queues[index];
        queue.epoch = i64::try_from(since).unwrap_or(i64::MAX).max(queue.epoch + 1);
        (queue.is_up, queue.is_paused, queue.last) = (true, false, 0);
        let (partition, epoch) = (queue.partition.clone(), queue.epoch);
        self.changes.push_back(Change::Assigned { partition, epoch });
    }

    /// The connection is gone, and with it everything that it brought. Whoever waits for an acknowledgement
    /// hears that it was not written.
    pub(crate) fn revoke(&mut self, index: usize) {
        let queue = &mut self.queues[index];
        if std::mem::take(&mut queue.is_up) {
            queue.held.clear();
            queue.acks.clear();
            queue.being_written = 0;
            let (partition, epoch) = (queue.partition.clone(), queue.epoch);
            self.changes.push_back(Change::Revoked { partition, epoch });
        }
    }

    /// A delivery came. Its number is higher than those before it under this epoch.
    pub(crate) fn put(&mut self, index: usize, number: i64, delivery: impl FnOnce(Ticket) -> Delivery) {
        let queue = &mut self.queues[index];
        let delivery = delivery(Ticket { partition: queue.partition.clone(), epoch: queue.epoch, number });
        queue.last = queue.last.max(number);
        queue.held.insert(number, Shelved { delivery, stage: ShelfState::Fresh, nacks: 0 });
    }

    /// So many messages are gone. That is told also when nobody reads the queue any more.
    pub(crate) fn lose(&mut self, index: usize, count: usize) {
        let (partition, until) = (self.queues[index].partition.clone(), i64::try_from(count));
        if count > 0 {
            self.changes.push_back(Change::Lost { partition, from: 0, until: until.unwrap_or(i64::MAX) });
        }
    }

    /// Losses that were not told, and will not be.
    pub(crate) fn untold_losses(&mut self) -> Vec<(Partition, u64)> {
        let lost = |change| match change {
            Change::Lost { partition, from, until } => Some((partition, from.abs_diff(until))),
            _ => None,
        };
        self.changes.drain(..).filter_map(lost).collect()
    }

    /// What changed, or what goes out now. Changes come alone: what is here may belong to an assignment that
    /// the caller has not heard of.
    pub(crate) fn take(&mut self, limit: Limit) -> Batch {
        if !self.changes.is_empty() {
            return Batch { changes: self.changes.drain(..).collect(), deliveries: Vec::new() };
        }
        let out: usize = self.queues.iter().map(Shelf::out).sum();
        let mut room = self.in_hand_max.saturating_sub(out).min(limit.events);
        let (mut bytes, mut deliveries, now) = (0, Vec::new(), Instant::now());
        let count = self.queues.len();
        self.turn = (self.turn + 1) % count.max(1);
        for index in 0..count {
            let queue = &mut self.queues[(index + self.turn) % count];
            if !queue.is_up || queue.is_paused {
                continue;
            }
            for held in queue.held.values_mut() {
                match held.stage {
                    _ if room == 0 => return Batch { changes: Vec::new(), deliveries },
                    ShelfState::Out => continue,
                    ShelfState::Back(due) if due > now && self.nack_order == NackOrder::Kept => break,
                    ShelfState::Back(due) if due > now => continue,
                    ShelfState::Back(_) | ShelfState::Fresh => {}
                }
                bytes += held.delivery.message.bytes();
                if bytes > limit.bytes && !deliveries.is_empty() {
                    return Batch { changes: Vec::new(), deliveries };
                }
                held.stage = ShelfState::Out;
                room -= 1;
                let mut delivery = held.delivery.clone();
                delivery.ticket.epoch = queue.epoch;
                delivery.redelivery = delivery.redelivery.map(|before| before.saturating_add(held.nacks));
                deliveries.push(delivery);
            }
        }
        Batch { changes: Vec::new(), deliveries }
    }

    /// When the next one that was given back goes out again.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let due = |held: &Shelved| if let ShelfState::Back(due) = held.stage { Some(due) } else { None };
        let waiting = self.queues.iter().filter(|queue| queue.is_up && !queue.is_paused);
        waiting.flat_map(|queue| queue.held.values().filter_map(due)).min()
    }

    /// Notes acknowledgements. Each ticket's standing; and what tells that they are written, by queue.
    pub(crate) fn ack(
        &mut self,
        tickets: &[Ticket],
    ) -> (Vec<Standing>, Vec<(Partition, oneshot::Receiver<()>)>) {
        let mut standings = Vec::with_capacity(tickets.len());
        let mut tags: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for ticket in tickets {
            let found = self.queues.iter().position(|queue| queue.partition == ticket.partition);
            let Some(index) = found.filter(|index| self.queues[*index].settles(ticket)) else {
                standings.push(Standing::Revoked);
                continue;
            };
            let queue = &mut self.queues[index];
            // What was given back meanwhile stays so.
            if queue.held.get(&ticket.number).is_some_and(|held| held.stage == ShelfState::Out) {
                queue.held.remove(&ticket.number);
                tags.entry(index).or_default().push(ticket.number.unsigned_abs());
            }
            standings.push(Standing::Settled);
        }
        let mut waits = Vec::new();
        for (index, tags) in tags {
            let (written, wait) = oneshot::channel();
            self.queues[index].acks.push(Acks { tags, written });
            waits.push((self.queues[index].partition.clone(), wait));
        }
        (standings, waits)
    }

    /// Acknowledgements that are to be written now; and the highest tag below which nothing else is held.
    pub(crate) fn take_acks(&mut self, index: usize) -> (Vec<Acks>, u64) {
        let queue = &mut self.queues[index];
        let before = queue.held.keys().next().map_or(queue.last, |first| first - 1);
        queue.being_written = queue.acks.len();
        (std::mem::take(&mut queue.acks), before.unsigned_abs())
    }

    /// The broker has what was taken to be written.
    pub(crate) fn acks_are_written(&mut self, index: usize) {
        self.queues[index].being_written = 0;
    }

    /// Forgets what nobody has, for it goes to others.
    pub(crate) fn let_go(&mut self, index: usize) -> Vec<i64> {
        let queue = &mut self.queues[index];
        let idle = queue.held.iter().filter(|(_, held)| held.stage != ShelfState::Out);
        let idle: Vec<i64> = idle.map(|(number, _)| *number).collect();
        idle.iter().for_each(|number| drop(queue.held.remove(number)));
        idle
    }

    pub(crate) fn nack(&mut self, ticket: &Ticket, due: Instant) -> Standing {
        let queue = self.queues.iter_mut().find(|queue| queue.partition == ticket.partition);
        let Some(queue) = queue.filter(|queue| queue.settles(ticket)) else { return Standing::Revoked };
        if let Some(held) = queue.held.get_mut(&ticket.number).filter(|held| held.stage == ShelfState::Out) {
            (held.stage, held.nacks) = (ShelfState::Back(due), held.nacks.saturating_add(1));
        }
        Standing::Settled
    }

    pub(crate) fn pause(&mut self, partition: &Partition, is_paused: bool) -> Result<(), SourceError> {
        self.owned(partition)?.is_paused = is_paused;
        Ok(())
    }

    /// Everything that is here goes out again, under a new epoch.
    pub(crate) fn again(&mut self, partition: &Partition) -> Result<i64, SourceError> {
        let queue = self.owned(partition)?;
        let before = queue.epoch;
        queue.epoch += 1;
        queue.held.values_mut().for_each(|held| held.stage = ShelfState::Fresh);
        let after = queue.epoch;
        self.changes.push_back(Change::Revoked { partition: partition.clone(), epoch: before });
        self.changes.push_back(Change::Assigned { partition: partition.clone(), epoch: after });
        Ok(after)
    }

    fn owned(&mut self, partition: &Partition) -> Result<&mut Shelf, SourceError> {
        let found = self.queues.iter_mut().find(|queue| queue.partition == *partition && queue.is_up);
        found.ok_or_else(|| SourceError::NotAssigned(partition.clone()))
    }

    pub(crate) fn views(&self) -> Vec<PartitionView> {
        let view = |queue: &Shelf| PartitionView {
            partition: queue.partition.clone(),
            epoch: queue.epoch,
            committed: None,
            declared: false,
            first: None,
            end: None,
            log_id: None,
            in_hand: queue.out(),
            paused: queue.is_paused,
        };
        self.queues.iter().filter(|queue| queue.is_up).map(view).collect()
    }

    /// Deliveries with the consumer, and acknowledgements that are not written.
    pub(crate) fn unsettled(&self) -> (usize, usize) {
        let out = self.queues.iter().map(Shelf::out).sum();
        (out, self.queues.iter().map(|queue| queue.acks.len() + queue.being_written).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_also_when_the_queue_is_not_read_any_more() {
        let mut shelves = Shelves::new(&["q".to_owned()], NackOrder::Overtaken, 10);
        let all = Limit { events: 9, bytes: 1 << 20 };
        shelves.assign(0);
        shelves.lose(0, 3);
        shelves.revoke(0);
        shelves.lose(0, 2);
        let told = shelves.take(all).changes;
        let lost = |change: &Change| matches!(change, Change::Lost { from: 0, until: 2 | 3, .. });
        assert_eq!(told.iter().filter(|change| lost(change)).count(), 2, "{told:?}");
        shelves.lose(0, 0);
        assert_eq!(shelves.untold_losses(), []);
        shelves.lose(0, 4);
        assert_eq!(shelves.untold_losses(), [(Partition::new("q", 0), 4)]);
    }
}
