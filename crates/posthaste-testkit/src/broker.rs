//! A broker in memory: the model of the source seam, as plain as it can be.
//!
//! Everything is one table under one lock, and every message has a status of its own for each group. There is
//! no prefix to compute and no lease to renew: a kill is a fact, not an expiry. So it says what the contract
//! means, and a real source that disagrees with it is wrong, or the contract is.
//!
//! It comes as a **log** (positions, one committed prefix for a partition) and as a **queue** (each message
//! by itself, later ones overtake what was given back): the two kinds of brokers that there are.

mod source;

use posthaste::event::Timestamp;
use posthaste::source::{Change, Partition, Received, StartFrom};
pub use source::MemorySource;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

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
    /// Calls that acknowledged something.
    acks: usize,
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

    /// The messages of a topic, partition by partition.
    #[must_use]
    pub fn entries(&self, topic: &str) -> Vec<Vec<(Received, Timestamp)>> {
        let world = self.world();
        let partitions = world.topics.get(topic).map(|topic| &topic.partitions);
        partitions.into_iter().flatten().map(|log| log.entries.clone()).collect()
    }

    /// How many times something was acknowledged, one message or many.
    #[must_use]
    pub fn acks(&self) -> usize {
        self.world().acks
    }

    /// Somebody moves the position of a group, as brokers allow while the group has no members.
    pub fn reset(&self, group: &str, topic: &str, to: impl Fn(i64) -> i64) {
        let mut world = self.world();
        let world = &mut *world;
        let (Some(group), Some(topic)) = (world.groups.get_mut(group), world.topics.get(topic)) else {
            return;
        };
        for (partition, slot) in group.slots.iter_mut().filter(|(_, slot)| slot.owner.is_none()) {
            let end = topic.partitions[usize::try_from(partition.number).unwrap_or(0)].entries.len() as i64;
            slot.start = to(end).clamp(0, end);
            slot.messages.clear();
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
    /// The owner is gone. What was in hand is free again; a log forgets what was acknowledged ahead of its
    /// prefix.
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
    /// Shares the partitions out: the dead are struck off, leavers give back what is empty, the others share
    /// the rest.
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
