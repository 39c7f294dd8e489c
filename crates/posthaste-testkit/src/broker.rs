//! A broker in memory: the model of the source seam, as plain as it can be.
//!
//! Everything is one table under one lock, and every message has a status of its own for each group. There is no prefix to
//! compute and no lease to renew: a kill is a fact, not an expiry. So it says what the contract means, and a real source
//! that disagrees with it is wrong, or the contract is.
//!
//! It comes as a **log** (positions, one committed prefix for a partition) and as a **queue** (each message by itself,
//! later ones overtake what was given back): the two kinds of brokers that there are.

use async_trait::async_trait;
use posthaste::event::Timestamp;
use posthaste::source::{
    AckScope, Batch, Capabilities, Change, Delivery, Drained, Limit, NackOrder, Partition, PartitionView,
    Received, SeekTo, Source, SourceError, Standing, StartFrom, Ticket,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How often a waiting call looks again. Free on a paused clock.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Which kind of broker it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerKind {
    /// One committed position for a partition.
    Log,
    /// Each message by itself.
    Queue,
}

/// The broker. Clones are the same one.
#[derive(Clone)]
pub struct MemoryBroker {
    kind: BrokerKind,
    /// Most deliveries in hand of a member.
    in_hand_max: usize,
    world: Arc<Mutex<World>>,
}

#[derive(Default)]
struct World {
    topics: BTreeMap<Arc<str>, MemoryTopic>,
    groups: BTreeMap<String, Group>,
}

struct MemoryTopic {
    created_at: Instant,
    partitions: Vec<PartitionLog>,
}

#[derive(Default, Clone)]
struct PartitionLog {
    first: i64,
    entries: Vec<(Received, Timestamp)>,
}

#[derive(Default)]
struct Group {
    since: BTreeMap<Arc<str>, Instant>,
    members: BTreeMap<String, Life>,
    slots: BTreeMap<Partition, Slot>,
}

struct Life {
    topic: Arc<str>,
    last_call: Instant,
    stall_limit: Duration,
    start_from: StartFrom,
    /// Set by a drain: takes nothing more, and at this time gives up what is in hand.
    closing: Option<Instant>,
    closed: bool,
    abandoned: usize,
    changes: Vec<Change>,
}

/// A partition of a group.
struct Slot {
    epoch: i64,
    owner: Option<String>,
    leaving: bool,
    paused: bool,
    start: i64,
    messages: BTreeMap<i64, MessageState>,
    counts: BTreeMap<i64, u32>,
}

#[derive(Clone, Copy, PartialEq)]
enum MessageState {
    Out,
    Back(Instant),
    Done,
}

impl MemoryBroker {
    /// An empty broker.
    #[must_use]
    pub fn new(kind: BrokerKind, in_hand_max: usize) -> Self {
        Self { kind, in_hand_max, world: Arc::default() }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a topic.
    pub fn declare(&self, topic: &str, partitions: u32) {
        let partitions = vec![PartitionLog::default(); partitions.max(1) as usize];
        let made = MemoryTopic { created_at: Instant::now(), partitions };
        self.world().topics.entry(topic.into()).or_insert(made);
    }

    /// Publishes a message; the topic is made if need be.
    pub fn publish(&self, topic: &str, message: Received) {
        self.declare(topic, 1);
        let mut world = self.world();
        let Some(topic) = world.topics.get_mut(topic) else { return };
        let seed = message.key.clone().unwrap_or_default();
        let hash =
            seed.iter().fold(17_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)));
        let (count, now) = (topic.partitions.len(), topic.created_at.elapsed());
        let at = Timestamp(1_700_000_000_000_000).plus_micros(i64::try_from(now.as_micros()).unwrap_or(0));
        topic.partitions[hash % count].entries.push((message, at));
    }

    /// Removes messages of a partition below a position.
    pub fn remove_below(&self, topic: &str, partition: i32, position: i64) {
        let number = usize::try_from(partition).unwrap_or(0);
        if let Some(topic) = self.world().topics.get_mut(topic) {
            topic.partitions[number].first = position;
        }
    }

    /// Joins a group.
    #[must_use]
    pub fn join(
        &self,
        group: &str,
        topic: &str,
        member: &str,
        start_from: StartFrom,
        stall_limit: Duration,
    ) -> MemorySource {
        let mut world = self.world();
        let (topic, now): (Arc<str>, _) = (topic.into(), Instant::now());
        let state = world.groups.entry(group.to_owned()).or_default();
        state.since.entry(Arc::clone(&topic)).or_insert(now);
        let life = Life {
            topic,
            last_call: now,
            stall_limit,
            start_from,
            closing: None,
            closed: false,
            abandoned: 0,
            changes: Vec::new(),
        };
        state.members.insert(member.to_owned(), life);
        drop(world);
        MemorySource { broker: self.clone(), group: group.to_owned(), member: member.to_owned(), stall_limit }
    }

    /// A member dies. Its source does not know.
    pub fn kill(&self, group: &str, member: &str) {
        let mut world = self.world();
        let Some(group) = world.groups.get_mut(group) else { return };
        if let Some(life) = group.members.get_mut(member) {
            life.closed = true;
        }
        for slot in group.slots.values_mut().filter(|slot| slot.owner.as_deref() == Some(member)) {
            slot.end(self.kind, true);
        }
    }
}

impl Slot {
    /// The owner is gone. What was in hand is free again; a log forgets what was acknowledged ahead of its prefix.
    fn end(&mut self, kind: BrokerKind, died: bool) {
        (self.owner, self.leaving, self.paused) = (None, false, false);
        let committed = self.committed();
        let forget = |status: &MessageState| kind == BrokerKind::Log || *status != MessageState::Done;
        let open: Vec<i64> =
            self.messages.range(committed..).filter(|(_, s)| forget(s)).map(|(p, _)| *p).collect();
        for position in open {
            let was_out = self.messages.remove(&position) == Some(MessageState::Out);
            if died && was_out {
                *self.counts.entry(position).or_default() += 1;
            }
        }
    }

    /// The position before which everything is done.
    fn committed(&self) -> i64 {
        let mut committed = self.start;
        while self.messages.get(&committed) == Some(&MessageState::Done) {
            committed += 1;
        }
        committed
    }

    fn out(&self) -> usize {
        self.messages.values().filter(|status| **status == MessageState::Out).count()
    }
}

impl World {
    /// Who has what: the dead are struck off, leavers give back what is empty, the others share what is free.
    fn settle(&mut self, group: &str, kind: BrokerKind) {
        let now = Instant::now();
        let Some(state) = self.groups.get_mut(group) else { return };
        for (topic, log) in &self.topics {
            let Some(since) = state.since.get(topic) else { continue };
            let start_from =
                state.members.values().find(|life| life.topic == *topic).map(|life| life.start_from);
            for (number, log) in log.partitions.iter().enumerate() {
                let partition =
                    Partition { topic: Arc::clone(topic), number: i32::try_from(number).unwrap_or(0) };
                let from_end =
                    start_from == Some(StartFrom::Latest) && self.topics[topic].created_at <= *since;
                let start = if from_end { log.entries.len() as i64 } else { log.first };
                state.slots.entry(partition).or_insert_with(|| Slot {
                    epoch: 0,
                    owner: None,
                    leaving: false,
                    paused: false,
                    start,
                    messages: BTreeMap::new(),
                    counts: BTreeMap::new(),
                });
            }
        }
        let topics: Vec<Arc<str>> = state.since.keys().cloned().collect();
        for topic in topics {
            state.share(&topic, now, kind, &self.topics);
        }
    }
}

impl Group {
    fn share(
        &mut self,
        topic: &Arc<str>,
        now: Instant,
        kind: BrokerKind,
        topics: &BTreeMap<Arc<str>, MemoryTopic>,
    ) {
        let stalled = |life: &Life| now.duration_since(life.last_call) > life.stall_limit;
        let takes =
            |life: &Life| life.topic == *topic && !life.closed && life.closing.is_none() && !stalled(life);
        let names: Vec<String> =
            self.members.iter().filter(|(_, life)| takes(life)).map(|(name, _)| name.clone()).collect();
        let total = self.slots.keys().filter(|partition| partition.topic == *topic).count();
        for (name, life) in self.members.iter_mut().filter(|(_, life)| life.topic == *topic) {
            let share = names
                .iter()
                .position(|n| n == name)
                .map_or(0, |rank| total / names.len() + usize::from(rank < total % names.len()));
            let over = stalled(life) || life.closing.is_some_and(|deadline| deadline <= now);
            let mut mine = 0;
            for (partition, slot) in self.slots.iter_mut().filter(|(p, _)| p.topic == *topic) {
                if slot.owner.as_deref() != Some(name) {
                    continue;
                }
                mine += 1;
                slot.leaving = mine > share;
                if slot.leaving && (slot.out() == 0 || over) {
                    life.abandoned += slot.out();
                    let epoch = slot.epoch;
                    slot.end(kind, slot.out() > 0);
                    life.changes.push(Change::Revoked { partition: partition.clone(), epoch });
                    mine -= 1;
                }
            }
            for (partition, slot) in self.slots.iter_mut().filter(|(p, _)| p.topic == *topic) {
                if slot.owner.is_none() && mine < share {
                    mine += 1;
                    slot.owner = Some(name.clone());
                    slot.epoch += 1;
                    life.changes.push(Change::Assigned { partition: partition.clone(), epoch: slot.epoch });
                    let first =
                        topics[topic].partitions[usize::try_from(partition.number).unwrap_or(0)].first;
                    let from = slot.committed();
                    if from < first {
                        life.changes.push(Change::Lost { partition: partition.clone(), from, until: first });
                        slot.start = first;
                    }
                }
            }
            if life.closing.is_some() && mine == 0 {
                life.closed = true;
            }
        }
    }
}

/// A member of a group of a [`MemoryBroker`].
pub struct MemorySource {
    broker: MemoryBroker,
    group: String,
    member: String,
    stall_limit: Duration,
}

impl MemorySource {
    fn look(&self, limit: Limit) -> Result<Batch, SourceError> {
        let mut world = self.broker.world();
        let world = &mut *world;
        let life = world.groups.get_mut(&self.group).and_then(|group| group.members.get_mut(&self.member));
        let life = life.ok_or(SourceError::Closed)?;
        if life.closing.is_some() {
            return Err(SourceError::Closed);
        }
        life.last_call = Instant::now();
        world.settle(&self.group, self.broker.kind);
        let Some(group) = world.groups.get_mut(&self.group) else { return Ok(Batch::default()) };
        let changes = group.members.get_mut(&self.member).map(|life| std::mem::take(&mut life.changes));
        let mut batch = Batch { changes: changes.unwrap_or_default(), deliveries: Vec::new() };
        let mut bytes = 0;
        let open = |group: &Group| -> usize {
            let mine = group.slots.values().filter(|slot| slot.owner.as_deref() == Some(&self.member));
            mine.map(|slot| slot.messages.values().filter(|status| **status == MessageState::Out).count())
                .sum()
        };
        let mut room = self.broker.in_hand_max.saturating_sub(open(group)).min(limit.events);
        for (partition, slot) in &mut group.slots {
            if slot.owner.as_deref() != Some(&self.member) || slot.leaving || slot.paused {
                continue;
            }
            let log =
                &world.topics[&partition.topic].partitions[usize::try_from(partition.number).unwrap_or(0)];
            let mut position = slot.start.max(log.first);
            while room > 0 && position < log.entries.len() as i64 {
                let status = slot.messages.get(&position).copied();
                if let Some(MessageState::Back(due)) = status
                    && due > Instant::now()
                    && self.broker.kind == BrokerKind::Log
                {
                    break;
                }
                let goes = match status {
                    None => true,
                    Some(MessageState::Back(due)) => due <= Instant::now(),
                    Some(_) => false,
                };
                if goes {
                    let (message, at) = &log.entries[usize::try_from(position).unwrap_or(0)];
                    bytes += message.bytes();
                    if bytes > limit.bytes && !batch.deliveries.is_empty() {
                        return Ok(batch);
                    }
                    slot.messages.insert(position, MessageState::Out);
                    room -= 1;
                    let ticket = Ticket { partition: partition.clone(), epoch: slot.epoch, number: position };
                    batch.deliveries.push(Delivery {
                        ticket,
                        position: Some(position),
                        redelivery: Some(slot.counts.get(&position).copied().unwrap_or(0)),
                        published_at: Some(*at),
                        message: message.clone(),
                    });
                }
                position += 1;
            }
        }
        Ok(batch)
    }

    /// Does something to the slot of a ticket, if it is still this member's.
    fn settle(&self, ticket: &Ticket, status: MessageState) -> Standing {
        let mut world = self.broker.world();
        world.settle(&self.group, self.broker.kind);
        let slot = world.groups.get_mut(&self.group).and_then(|group| group.slots.get_mut(&ticket.partition));
        let Some(slot) =
            slot.filter(|slot| slot.epoch == ticket.epoch && slot.owner.as_deref() == Some(&self.member))
        else {
            return Standing::Revoked;
        };
        if slot.messages.get(&ticket.number) == Some(&MessageState::Out) {
            slot.messages.insert(ticket.number, status);
            if status != MessageState::Done {
                *slot.counts.entry(ticket.number).or_default() += 1;
            }
        }
        Standing::Settled
    }

    fn with_slot<T>(
        &self,
        partition: &Partition,
        act: impl FnOnce(&mut Slot) -> T,
    ) -> Result<T, SourceError> {
        let mut world = self.broker.world();
        let slot = world.groups.get_mut(&self.group).and_then(|group| group.slots.get_mut(partition));
        let slot = slot.filter(|slot| slot.owner.as_deref() == Some(&self.member));
        slot.map(act).ok_or_else(|| SourceError::NotAssigned(partition.clone()))
    }
}

#[async_trait]
impl Source for MemorySource {
    fn capabilities(&self) -> Capabilities {
        let log = self.broker.kind == BrokerKind::Log;
        Capabilities {
            ack_scope: if log { AckScope::Prefix } else { AckScope::Each },
            nack_order: if log { NackOrder::Kept } else { NackOrder::Overtaken },
            orders_keys: true,
            counts_redeliveries: true,
            seeks: log,
            stall_limit: self.stall_limit,
        }
    }

    async fn next(&self, limit: Limit, wait: Duration) -> Result<Batch, SourceError> {
        let until = Instant::now() + wait;
        loop {
            let batch = self.look(limit)?;
            if !batch.is_empty() || Instant::now() >= until {
                return Ok(batch);
            }
            tokio::time::sleep(LOOK_EVERY.min(until - Instant::now())).await;
        }
    }

    async fn ack(&self, tickets: &[Ticket]) -> Result<Vec<Standing>, SourceError> {
        Ok(tickets.iter().map(|ticket| self.settle(ticket, MessageState::Done)).collect())
    }

    async fn nack(&self, ticket: &Ticket, delay: Duration) -> Result<Standing, SourceError> {
        Ok(self.settle(ticket, MessageState::Back(Instant::now() + delay)))
    }

    async fn pause(&self, partition: &Partition) -> Result<(), SourceError> {
        self.with_slot(partition, |slot| slot.paused = true)
    }

    async fn resume(&self, partition: &Partition) -> Result<(), SourceError> {
        self.with_slot(partition, |slot| slot.paused = false)
    }

    async fn seek(&self, partition: &Partition, to: SeekTo) -> Result<(), SourceError> {
        if self.broker.kind == BrokerKind::Queue {
            return Err(SourceError::Unsupported("seek"));
        }
        let log = {
            let world = self.broker.world();
            let topic = world.topics.get(&partition.topic);
            let number = usize::try_from(partition.number).unwrap_or(0);
            topic.and_then(|topic| topic.partitions.get(number)).cloned().unwrap_or_default()
        };
        let end = log.entries.len() as i64;
        let start = match to {
            SeekTo::Earliest => log.first,
            SeekTo::Latest => end,
            SeekTo::Position(position) => position.clamp(log.first, end),
            SeekTo::Time(time) => (log.first..end)
                .find(|n| log.entries[usize::try_from(*n).unwrap_or(0)].1 >= time)
                .unwrap_or(end),
        };
        let (before, after) = self.with_slot(partition, |slot| {
            (slot.start, slot.epoch) = (start, slot.epoch + 1);
            slot.messages.clear();
            (slot.epoch - 1, slot.epoch)
        })?;
        let mut world = self.broker.world();
        let life = world.groups.get_mut(&self.group).and_then(|group| group.members.get_mut(&self.member));
        if let Some(life) = life {
            life.changes.push(Change::Revoked { partition: partition.clone(), epoch: before });
            life.changes.push(Change::Assigned { partition: partition.clone(), epoch: after });
        }
        Ok(())
    }

    async fn view(&self) -> Result<Vec<PartitionView>, SourceError> {
        let world = self.broker.world();
        let Some(group) = world.groups.get(&self.group) else { return Ok(Vec::new()) };
        let mine = group.slots.iter().filter(|(_, slot)| slot.owner.as_deref() == Some(&self.member));
        let view = |(partition, slot): (&Partition, &Slot)| {
            let log =
                &world.topics[&partition.topic].partitions[usize::try_from(partition.number).unwrap_or(0)];
            PartitionView {
                partition: partition.clone(),
                epoch: slot.epoch,
                committed: Some(slot.committed()),
                end: Some(log.entries.len() as i64),
                in_hand: slot.out(),
                paused: slot.paused,
            }
        };
        Ok(mine.map(view).collect())
    }

    async fn drain(&self, wait: Duration) -> Result<Drained, SourceError> {
        let deadline = Instant::now() + wait;
        loop {
            {
                let mut world = self.broker.world();
                let life =
                    world.groups.get_mut(&self.group).and_then(|group| group.members.get_mut(&self.member));
                let life = life.ok_or(SourceError::Closed)?;
                life.closing.get_or_insert(deadline);
                world.settle(&self.group, self.broker.kind);
                let life = world.groups.get(&self.group).and_then(|group| group.members.get(&self.member));
                if let Some(life) = life.filter(|life| life.closed) {
                    return Ok(Drained { abandoned: life.abandoned });
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
